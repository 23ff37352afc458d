#include "symbols.h"

#include <atomic>
#include <random>

#include "sizes.h"

namespace opgate {

std::optional<SymbolicSize> Symbols::equal(const SymbolicSize& a, const SymbolicSize& b) {
  if (a.number && b.number && *a.number != *b.number) return std::nullopt;
  if (a.number) return a;
  return b.number || a.name.empty() ? b : a;
}

Status Symbols::apply(Expr::Kind operation, const SymbolicSize& a, const SymbolicSize& b, SymbolicSize& result) {
  result = {};
  if (!a.number || !b.number) return {};
  return opgate::apply(operation, *a.number, *b.number, result.number.emplace());
}

std::string Symbols::text(const SymbolicSize& size) {
  if (size.number) return std::to_string(*size.number);
  return size.name.empty() ? "?" : std::string(size.name);
}

namespace {

/// A size with a name that no other size has. A saved model holds the names of the process that optimized it, so they
/// have a part that differs from process to process.
SymbolicSize fresh_size(const std::string& what, std::deque<std::string>& names) {
  static std::atomic<std::uint64_t> count{0};
  static const std::string process = std::to_string(std::random_device()());
  return {std::nullopt, names.emplace_back(what + "_" + process + "_" + std::to_string(count++))};
}

}  // namespace

Status output_shapes(SymbolicWalk& walk, std::deque<std::string>& names, std::vector<SymbolicShape>& shapes) {
  const Signature& signature = walk.signature();
  for (std::size_t s = 0; s < signature.slots.size(); ++s) {
    const Slot& slot = signature.slots[s];
    if (slot.kind != Slot::Kind::kernel) continue;
    std::optional<SymbolicSize> bound;
    OPGATE_RETURN_IF_ERROR(walk.bound_of(static_cast<int>(s), bound));
    const bool none = bound && bound->number == 0;
    walk.set_kernel_size(static_cast<int>(s),
                         none ? Symbols::constant(0) : fresh_size(signature.name + "_" + slot.name, names));
  }
  shapes.assign(signature.outputs.size(), std::nullopt);
  for (std::size_t o = 0; o < shapes.size(); ++o) {
    if (!walk.knows_rank(signature.outputs[o])) continue;
    bool complete = false;
    OPGATE_RETURN_IF_ERROR(walk.output_dims(signature.outputs[o], shapes[o].emplace(), complete));
    for (SymbolicSize& size : *shapes[o]) {
      if (size.unknown()) size = fresh_size(signature.name, names);
    }
  }
  return {};
}

}  // namespace opgate

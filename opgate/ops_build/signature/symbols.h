// Sizes before the run: a number, the name that a graph gives to an unknown size, or neither.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "walk.h"

namespace opgate {

/// If it has neither a number nor a name, nothing is known about the size.
struct SymbolicSize {
  std::optional<std::int64_t> number;
  std::string_view name;

  bool unknown() const { return !number && name.empty(); }
};

/// The algebra (walk.h) of sizes of which some are known. An operation with a size that is no number gives an unknown
/// size.
struct Symbols {
  using Size = SymbolicSize;

  static Size constant(std::int64_t number) { return {number, {}}; }
  static std::optional<std::int64_t> number(const Size& size) { return size.number; }
  static std::optional<Size> equal(const Size& a, const Size& b);
  static Status apply(Expr::Kind operation, const Size& a, const Size& b, Size& result);
  static std::string text(const Size& size);
};

using SymbolicWalk = Walk<Symbols>;

/// The dims of one output. nullopt if the rank is not known.
using SymbolicShape = std::optional<InlineVector<SymbolicSize, 8>>;

/// The shapes of the outputs. `walk` has bound the inputs. Each unknown size gets a name that no other size has, so
/// that nobody assumes that two unknown sizes are equal. A size that the kernel sets has the same name in all outputs.
/// The characters of the names are in `names`.
Status output_shapes(SymbolicWalk& walk, std::deque<std::string>& names, std::vector<SymbolicShape>& shapes);

}  // namespace opgate

#include "kernel_cache.h"

#include "guard.h"
#include "invoke.h"

namespace opgate {

Status KernelCache::find(const Op& op, Device device, const Attributes& attributes, const NodeFacts& facts,
                         std::shared_ptr<const void>& kernel) {
  kernel.reset();
  const Kernel& type = op.kernel(device);
  if (!type.prepare) return {};
  const std::lock_guard lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (!entry->node.serves(attributes, facts)) continue;
    entries_.splice(entries_.begin(), entries_, entry);
    kernel = entry->kernel;
    return {};
  }
  NodeFacts known = facts;
  std::optional<GuardedInputs> copies;
  if (device == Device::cpu && guards_tensors()) {
    copies.emplace(full_name(op), facts.constants);
    known.constants = copies->pointers();
  }
  Node node(op.signature, attributes, std::move(known));
  OPGATE_RETURN_IF_ERROR(type.prepare(node, kernel));
  entries_.push_front({std::move(node), kernel});
  if (entries_.size() > capacity_) entries_.pop_back();
  return {};
}

}  // namespace opgate

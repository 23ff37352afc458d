// One call of an op from torch.
#pragma once

#include "arguments.h"
#include "core/kernel_cache.h"

namespace opgate::libtorch {

/// Runs an op and leaves its outputs on the stack. Throws what torch turns into Python's exceptions:
/// std::invalid_argument, which becomes ValueError, and std::runtime_error.
void call(const Op& op, Device device, KernelCache& kernels, StableIValue* stack);

}  // namespace opgate::libtorch

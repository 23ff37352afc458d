// One call of an op from torch.
#pragma once

#include "arguments.h"
#include "op_call/kernel_cache.h"
#include "schema.h"

namespace opgate::libtorch {

/// Runs an op and puts the outputs that the function returns on the stack. Throws std::invalid_argument, which torch
/// turns into ValueError, or std::runtime_error, which it turns into RuntimeError.
void call(const Op& op, Device device, Returns returns, KernelCache& kernels, StableIValue* stack);

}  // namespace opgate::libtorch

// Runs a kernel that is a function of C (c_kernel.h).
#pragma once

#include "c_kernel.h"
#include "kernel.h"

namespace opgate {

/// Calls the kernel with the tensors, the attributes and the engine of a call.
Status run_c_kernel(OpgateKernel kernel, Context& context, const Inputs& in, const Attributes& attributes,
                    Outputs& out);

}  // namespace opgate

#include "gelu.h"

#include "core/elementwise.cuh"

namespace opgate::ops::gelu {

using Cuda = gelu::ByApproximation<FastCudaElementwise, Exact, Tanh>;

}  // namespace opgate::ops::gelu

OPGATE_CUDA_KERNEL(Gelu, opgate::ops::gelu::Cuda)

#include "gelu_backward.h"

#include "core/elementwise.cuh"

namespace opgate::ops::gelu_backward {

using Cuda = gelu::ByApproximation<FastCudaElementwise, Exact, Tanh>;

}  // namespace opgate::ops::gelu_backward

OPGATE_CUDA_KERNEL(GeluBackward, opgate::ops::gelu_backward::Cuda)

#include "clamped_relu.h"

#include "core/elementwise.cuh"

OPGATE_CUDA_KERNEL(ClampedRelu, opgate::CudaElementwise<opgate::ops::clamped_relu::Formula>)

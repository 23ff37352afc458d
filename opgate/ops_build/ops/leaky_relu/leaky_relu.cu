#include "leaky_relu.h"

#include "core/elementwise.cuh"

OPGATE_CUDA_KERNEL(LeakyRelu, opgate::CudaElementwise<opgate::ops::leaky_relu::Formula>)

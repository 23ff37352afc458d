#include "mish.h"

#include "core/elementwise.cuh"

OPGATE_CUDA_KERNEL(Mish, opgate::CudaElementwise<opgate::ops::mish::Formula>)

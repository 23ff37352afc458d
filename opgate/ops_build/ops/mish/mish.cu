#include "mish.h"

#include "core/elementwise.cuh"

OPGATE_CUDA_KERNEL(Mish, opgate::FastCudaElementwise<opgate::ops::mish::Formula>)

#include "swish.h"

#include "core/elementwise.cuh"

OPGATE_CUDA_KERNEL(Swish, opgate::FastCudaElementwise<opgate::ops::swish::Formula>)

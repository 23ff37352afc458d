#include "swish.h"

#include "core/elementwise.cuh"

OPGATE_CUDA_KERNEL(Swish, opgate::CudaElementwise<opgate::ops::swish::Formula>)

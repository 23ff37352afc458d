#include "swish_backward.h"

#include "core/elementwise.cuh"

OPGATE_CUDA_KERNEL(SwishBackward, opgate::FastCudaElementwise<opgate::ops::swish_backward::Formula>)

#include "mish_backward.h"

#include "core/elementwise.cuh"

OPGATE_CUDA_KERNEL(MishBackward, opgate::FastCudaElementwise<opgate::ops::mish_backward::Formula>)

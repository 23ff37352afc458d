#include "mish_backward.h"

#include "core/elementwise.cuh"

OPGATE_CUDA_KERNEL(MishBackward, opgate::CudaElementwise<opgate::ops::mish_backward::Formula>)

#include "asinh.h"

#include "core/elementwise.cuh"

OPGATE_CUDA_KERNEL(Asinh, opgate::FastCudaElementwise<opgate::ops::asinh::Formula>)

#include "asinh.h"

#include "core/elementwise.cuh"

OPGATE_CUDA_KERNEL(Asinh, opgate::CudaElementwise<opgate::ops::asinh::Formula>)

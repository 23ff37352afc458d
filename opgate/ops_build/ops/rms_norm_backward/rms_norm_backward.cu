#include "rms_norm_backward.h"

#include "norms/row_gradients.cuh"

OPGATE_CUDA_KERNEL(RMSNormBackward, opgate::ops::row_gradients::Cuda<false>)

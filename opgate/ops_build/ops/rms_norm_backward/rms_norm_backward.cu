#include "rms_norm_backward.h"

#include "ops/layer_norm_backward/row_gradients.cuh"

OPGATE_CUDA_KERNEL(RMSNormBackward, opgate::ops::row_gradients::Cuda<false>)

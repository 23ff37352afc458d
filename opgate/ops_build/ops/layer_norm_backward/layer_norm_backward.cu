#include "layer_norm_backward.h"

#include "row_gradients.cuh"

OPGATE_CUDA_KERNEL(LayerNormBackward, opgate::ops::row_gradients::Cuda<true>)

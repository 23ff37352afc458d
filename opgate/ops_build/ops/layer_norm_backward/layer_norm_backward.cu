#include "layer_norm_backward.h"

#include "norms/row_gradients.cuh"

OPGATE_CUDA_KERNEL(LayerNormBackward, opgate::ops::row_gradients::Cuda<true>)

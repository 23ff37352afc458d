#include "layer_norm_backward.h"

#include "norms/row_gradients.h"

OPGATE_CPU_KERNEL(LayerNormBackward, opgate::ops::RowGradientsCpu<true>)

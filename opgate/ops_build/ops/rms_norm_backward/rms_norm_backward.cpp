#include "rms_norm_backward.h"

#include "ops/layer_norm_backward/row_gradients.h"

OPGATE_CPU_KERNEL(RMSNormBackward, opgate::ops::RowGradientsCpu<false>)

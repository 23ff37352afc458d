#include "rms_norm_backward.h"

#include "norms/row_gradients.h"

OPGATE_CPU_KERNEL(RMSNormBackward, opgate::ops::RowGradientsCpu<false>)

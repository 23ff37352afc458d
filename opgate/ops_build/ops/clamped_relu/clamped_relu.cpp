#include "clamped_relu.h"

#include "core/elementwise.h"

OPGATE_CPU_KERNEL(ClampedRelu, opgate::CpuElementwise<opgate::ops::clamped_relu::Formula>)

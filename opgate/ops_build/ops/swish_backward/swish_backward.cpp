#include "swish_backward.h"

#include "core/elementwise.h"

OPGATE_CPU_KERNEL(SwishBackward, opgate::CpuElementwise<opgate::ops::swish_backward::Formula>)

#include "mish_backward.h"

#include "core/elementwise.h"

OPGATE_CPU_KERNEL(MishBackward, opgate::CpuElementwise<opgate::ops::mish_backward::Formula>)

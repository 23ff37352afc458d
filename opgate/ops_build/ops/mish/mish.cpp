#include "mish.h"

#include "core/elementwise.h"

OPGATE_CPU_KERNEL(Mish, opgate::CpuElementwise<opgate::ops::mish::Formula>)

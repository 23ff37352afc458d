#include "swish.h"

#include "core/elementwise.h"

OPGATE_CPU_KERNEL(Swish, opgate::CpuElementwise<opgate::ops::swish::Formula>)

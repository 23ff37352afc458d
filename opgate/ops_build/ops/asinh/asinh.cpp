#include "asinh.h"

#include "core/elementwise.h"

OPGATE_CPU_KERNEL(Asinh, opgate::CpuElementwise<opgate::ops::asinh::Formula>)

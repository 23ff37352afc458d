#include "leaky_relu.h"

#include "core/elementwise.h"

OPGATE_CPU_KERNEL(LeakyRelu, opgate::CpuElementwise<opgate::ops::leaky_relu::Formula>)

#include "my_add.h"

#include "core/elementwise.h"

OPGATE_CPU_KERNEL(MyAdd, opgate::CpuElementwise<opgate::ops::my_add::Formula>)

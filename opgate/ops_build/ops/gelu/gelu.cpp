#include "gelu.h"

#include "core/elementwise.h"

namespace opgate::ops::gelu {

using Cpu = gelu::ByApproximation<CpuElementwise, Exact, Tanh>;

}  // namespace opgate::ops::gelu

OPGATE_CPU_KERNEL(Gelu, opgate::ops::gelu::Cpu)

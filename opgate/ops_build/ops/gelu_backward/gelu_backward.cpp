#include "gelu_backward.h"

#include "core/elementwise.h"

namespace opgate::ops::gelu_backward {

using Cpu = gelu::ByApproximation<CpuElementwise, Exact, Tanh>;

}  // namespace opgate::ops::gelu_backward

OPGATE_CPU_KERNEL(GeluBackward, opgate::ops::gelu_backward::Cpu)

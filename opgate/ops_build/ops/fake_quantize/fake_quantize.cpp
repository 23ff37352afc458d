#include "fake_quantize.h"

#include "cpu.h"

namespace opgate::ops::fake_quantize {

using Kernel = Cpu<Formula, kX>;

}  // namespace opgate::ops::fake_quantize

OPGATE_CPU_KERNEL(FakeQuantize, opgate::ops::fake_quantize::Kernel)

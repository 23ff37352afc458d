#include "fake_quantize_backward.h"

#include "ops/fake_quantize/cpu.h"

namespace opgate::ops::fake_quantize_backward {

using Kernel = fake_quantize::Cpu<Formula, fake_quantize::kGradY, fake_quantize::kX>;

}  // namespace opgate::ops::fake_quantize_backward

OPGATE_CPU_KERNEL(FakeQuantizeBackward, opgate::ops::fake_quantize_backward::Kernel)

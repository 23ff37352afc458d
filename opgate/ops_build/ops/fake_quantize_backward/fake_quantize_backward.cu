#include "fake_quantize_backward.h"

#include "ops/fake_quantize/cuda.cuh"

namespace opgate::ops::fake_quantize_backward {

using Kernel = fake_quantize::Cuda<Formula, fake_quantize::kGradY, fake_quantize::kX>;

}  // namespace opgate::ops::fake_quantize_backward

OPGATE_CUDA_KERNEL(FakeQuantizeBackward, opgate::ops::fake_quantize_backward::Kernel)

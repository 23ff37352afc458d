#include "fake_quantize.h"

#include "cuda.cuh"

namespace opgate::ops::fake_quantize {

using Kernel = Cuda<Formula, kX>;

}  // namespace opgate::ops::fake_quantize

OPGATE_CUDA_KERNEL(FakeQuantize, opgate::ops::fake_quantize::Kernel)

#include "resample_audio.h"

#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::resample_audio {
namespace {

using audio::Filter;
using audio::Rates;

constexpr int kThreads = 256;

/// A thread computes an output. Neighbours read nearly the same samples.
__global__ void __launch_bounds__(kThreads)
    resample(std::int64_t count, std::int64_t wanted, std::int64_t t, Rates rates, std::int64_t half,
             std::int64_t stride, const float* __restrict__ x, const float* __restrict__ filter,
             float* __restrict__ y) {
  const std::int64_t apart = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += apart) {
    const float* const row = x + i / wanted * t;
    const std::int64_t position = i % wanted * rates.down;
    const std::int64_t sample = Filter::first_sample(position, half, rates.up);
    const float* const weights = filter + position % rates.up * stride;
    const std::int64_t end = Filter::end_sample(position, half, rates.up);
    const std::int64_t low = sample < 0 ? -sample : 0, high = (end < t ? end : t) - sample;
    float sum = 0;
    for (std::int64_t k = low; k < high; ++k) sum += row[sample + k] * weights[k];
    y[i] = sum;
  }
}

class Cuda {
 public:
  static Status check(const Attributes& attributes, const KnownSizes&) { return check_attributes(attributes); }

  Status prepare(const Node& node) {
    const Filter filter = filter_of(node.attributes());
    stride_ = filter.stride;
    half_ = filter.half;
    return weights_.assign(filter.weights);
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t count = out["y"].size();
    if (count == 0) return {};
    resample<<<blocks_for(count, kThreads), kThreads, 0, stream_of(context)>>>(
        count, out["y"].dim(1), in.size("t"), rates_of(attributes), half_, stride_, in["x"].data<float>(),
        weights_.data(), out["y"].data<float>());
    return launched();
  }

 private:
  std::int64_t stride_ = 0, half_ = 0;
  cuda::DeviceArray<float> weights_;
};

}  // namespace
}  // namespace opgate::ops::resample_audio

OPGATE_CUDA_KERNEL(ResampleAudio, opgate::ops::resample_audio::Cuda)

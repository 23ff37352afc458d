// The kernel of FakeQuantize and of its gradient on CUDA.
#pragma once

#include "channels.h"
#include "kernel_toolkit/divisor.h"
#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::fake_quantize {

/// The range of the quantized numbers, and what the channels have of their own.
struct Quantization {
  const float* scale;
  const std::int32_t* zero_point;
  std::int64_t least, most;

  template <typename C>
  __device__ Channel<C> of(std::int64_t channel) const {
    return {scale[channel], zero_point[channel], least, most};
  }
};

/// A thread computes `lanes` elements, or fewer at the end. If they lie `together`, they have one channel.
template <typename Formula, int lanes, typename Index, typename T, typename... In>
__global__ void __launch_bounds__(elementwise::kThreads)
    run_channels(std::int64_t count, Divisor<Index> channels, Divisor<Index> inner, bool together,
                 Quantization quantization, T* __restrict__ out, const In* __restrict__... in) {
  using C = ComputeType<T>;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * elementwise::kThreads + threadIdx.x;
  const std::int64_t first = thread * lanes;
  if (first >= count) return;
  const auto channel_of = [&](std::int64_t i) {
    return quantization.template of<C>((static_cast<Index>(i) / inner) % channels);
  };
  if (first + lanes > count) {
    for (std::int64_t i = first; i < count; ++i)
      out[i] = static_cast<T>(Formula()(channel_of(i), static_cast<C>(in[i])...));
    return;
  }
  const auto write = [&](elementwise::Lanes<In, lanes>... loaded) {
    elementwise::Lanes<T, lanes> results;
    Channel<C> channel = channel_of(first);
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
      if (i > 0 && !together) channel = channel_of(first + i);
      results.values[i] = static_cast<T>(Formula()(channel, static_cast<C>(loaded.values[i])...));
    }
    reinterpret_cast<elementwise::Lanes<T, lanes>*>(out)[thread] = results;
  };
  write(reinterpret_cast<const elementwise::Lanes<In, lanes>*>(in)[thread]...);
}

template <typename Formula, const char*... names>
struct Cuda : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    Layout layout;
    OPGATE_RETURN_IF_ERROR(Layout::of(in, attributes, layout));
    const Quantization quantization{in["scale"].data<float>(), in["zero_point"].data<std::int32_t>(),
                                    attributes.integer("quant_min"), attributes.integer("quant_max")};
    const MutableTensor& to = out.at(0);
    if (to.size() == 0) return {};
    T* const target = to.data<T>();
    constexpr int lanes = elementwise::kBytes / sizeof(T);
    if (elementwise::aligned(target) && (elementwise::aligned(in[names].template data<T>()) && ...)) {
      launch<lanes>(stream_of(context), to.size(), layout, quantization, target, in[names].template data<T>()...);
    } else {
      launch<1>(stream_of(context), to.size(), layout, quantization, target, in[names].template data<T>()...);
    }
    return launched();
  }

 private:
  template <int lanes, typename T, typename... In>
  static void launch(cudaStream_t stream, std::int64_t count, const Layout& layout, const Quantization& quantization,
                     T* out, const In*... from) {
    const unsigned blocks = blocks_for((count + lanes - 1) / lanes, elementwise::kThreads);
    const bool together = layout.channels() == 1 || layout.inner() % lanes == 0;
    with_index(count, [&]<typename Index>(Index) {
      run_channels<Formula, lanes><<<blocks, elementwise::kThreads, 0, stream>>>(
          count, Divisor<Index>(layout.channels()), Divisor<Index>(layout.inner()), together, quantization, out,
          from...);
    });
  }
};

inline constexpr char kX[] = "x", kGradY[] = "grad_y";

}  // namespace opgate::ops::fake_quantize

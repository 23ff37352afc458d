// The kernel of FakeQuantize and of its gradient on CUDA: a thread computes an element.
#pragma once

#include "channels.h"
#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::fake_quantize {

template <typename Formula, typename T, typename... In>
__global__ void __launch_bounds__(elementwise::kThreads)
    run_channels(std::int64_t count, Layout layout, std::int64_t inner, const float* scale,
                 const std::int32_t* zero_point, std::int64_t least, std::int64_t most, T* out, const In*... in) {
  using C = ComputeType<T>;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * elementwise::kThreads + threadIdx.x;
  if (i >= count) return;
  const std::int64_t channel = layout.channel_of(i / inner);
  const Channel<C> quantized(scale[channel], zero_point[channel], least, most);
  out[i] = static_cast<T>(Formula()(quantized, static_cast<C>(in[i])...));
}

template <typename Formula, const char*... names>
struct Cuda : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    Layout layout;
    OPGATE_RETURN_IF_ERROR(Layout::of(in, attributes, layout));
    return run<T>(context, in, attributes, layout, out.at(0), in[names].template data<T>()...);
  }

 private:
  template <typename T, typename... In>
  static Status run(Context& context, const Inputs& in, const Attributes& attributes, const Layout& layout,
                    const MutableTensor& out, const In*... from) {
    const std::int64_t count = out.size();
    if (count == 0) return {};
    run_channels<Formula><<<blocks_for(count, elementwise::kThreads), elementwise::kThreads, 0, stream_of(context)>>>(
        count, layout, layout.inner(), in["scale"].data<float>(), in["zero_point"].data<std::int32_t>(),
        attributes.integer("quant_min"), attributes.integer("quant_max"), out.data<T>(), from...);
    return launched();
  }
};

inline constexpr char kX[] = "x", kGradY[] = "grad_y";

}  // namespace opgate::ops::fake_quantize

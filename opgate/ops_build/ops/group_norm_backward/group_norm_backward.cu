#include "group_norm_backward.h"

#include "kernel_toolkit/rows.cuh"

namespace opgate::ops::group_norm_backward {
namespace {

using rows::kThreads, rows::kWarp;

/// Where the numbers of a group and of a channel are.
struct Shape {
  std::int64_t groups, channels, part;  ///< channels of a group, numbers of a channel

  __device__ std::int64_t length() const { return channels * part; }
};

/// A block computes the gradient of a group, and its warps the sums of a channel each.
template <typename T, typename C = ComputeType<T>>
__global__ void __launch_bounds__(kThreads)
    find_grad_x(std::int64_t count, Shape shape, C epsilon, const T* __restrict__ grad_y, const T* __restrict__ sum,
                const T* __restrict__ weight, const T* __restrict__ grad_sum, T* __restrict__ grad_x,
                C* __restrict__ moments, C* __restrict__ sums) {
  const std::int64_t length = shape.length();
  for (std::int64_t group = blockIdx.x; group < count; group += gridDim.x) {
    const std::int64_t begin = group * length, first = group % shape.groups * shape.channels;
    const auto value = [&](std::int64_t i) { return static_cast<C>(sum[begin + i]); };
    const auto upstream = [&](std::int64_t i) { return static_cast<C>(grad_y[begin + i]); };
    const auto factor = [&](std::int64_t channel) { return weight ? static_cast<C>(weight[first + channel]) : C(1); };
    const rows::Standard<C> standardize = rows::standard<true>(length, epsilon, value);
    C plain = 0, moment = 0;
    for (std::int64_t channel = threadIdx.x / kWarp; channel < shape.channels; channel += kThreads / kWarp) {
      const std::int64_t at = channel * shape.part;
      const C a = rows::sum<C, kWarp>(shape.part, [&](std::int64_t i) { return upstream(at + i); });
      const C b = rows::sum<C, kWarp>(shape.part,
                                      [&](std::int64_t i) { return upstream(at + i) * standardize(value(at + i)); });
      if (threadIdx.x % kWarp == 0) {
        sums[group * shape.channels + channel] = a;
        moments[group * shape.channels + channel] = b;
        plain += factor(channel) * a;
        moment += factor(channel) * b;
      }
    }
    const C mean = rows::sum_over_threads<kThreads>(plain) / static_cast<C>(length);
    const C slope = rows::sum_over_threads<kThreads>(moment) / static_cast<C>(length);
    for (std::int64_t i = threadIdx.x; i < length; i += kThreads) {
      const C g = upstream(i) * factor(i / shape.part);
      C result = standardize.scale * ((g - mean) - standardize(value(i)) * slope);
      if (grad_sum) result += static_cast<C>(grad_sum[begin + i]);
      grad_x[begin + i] = static_cast<T>(result);
    }
  }
}

struct Cuda : group_norm::Checked {
  template <typename C>
  struct Memory {
    std::span<C> moments, sums;
  };

  template <typename T>
  static Memory<ComputeType<T>> workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    using C = ComputeType<T>;
    const std::int64_t count = in.size("n") * in.size("c");
    return {workspace.take<C>(count), workspace.take<C>(count)};
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    using C = ComputeType<T>;
    const std::int64_t n = in.size("n"), c = in.size("c"), groups = attributes.integer("groups");
    if (c == 0) return {};
    const Memory<C> memory = workspace<T>(context.workspace(), in, attributes);
    cudaStream_t stream = stream_of(context);
    if (n > 0) {
      const Shape shape{groups, c / groups, in["sum"].size() / (n * c)};
      find_grad_x<T><<<blocks_for(n * groups, 1), kThreads, 0, stream>>>(
          n * groups, shape, static_cast<C>(attributes.number("epsilon")), in["grad_y"].data<T>(), in["sum"].data<T>(),
          data_or_null<T>(in, "weight"), data_or_null<T>(in, "grad_sum"), out["grad_x_and_residual"].data<T>(),
          memory.moments.data(), memory.sums.data());
    }
    const unsigned blocks = blocks_for(c, kThreads);
    if (out.has("grad_weight"))
      rows::add_chunks<T><<<blocks, kThreads, 0, stream>>>(c, n, memory.moments.data(), out["grad_weight"].data<T>());
    if (out.has("grad_bias"))
      rows::add_chunks<T><<<blocks, kThreads, 0, stream>>>(c, n, memory.sums.data(), out["grad_bias"].data<T>());
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::group_norm_backward

OPGATE_CUDA_KERNEL(GroupNormBackward, opgate::ops::group_norm_backward::Cuda)

#include "multi_scale_deformable_attention_backward.h"

#include "kernel_toolkit/sorted.cuh"
#include "ops/multi_scale_deformable_attention/levels.cuh"

namespace opgate::ops::multi_scale_deformable_attention_backward {
namespace {

using namespace multi_scale_deformable_attention;

template <typename T>
struct Arguments {
  Sizes sizes;
  const Level* levels;
  const T *grad, *values, *locations, *attention;

  __device__ const Level& level_of(std::int64_t number) const { return levels[number / sizes.points % sizes.levels]; }
  /// The head of a query that a sample belongs to: query * heads + head.
  __device__ std::int64_t head_of(std::int64_t number) const { return number / sizes.points / sizes.levels; }
};

/// A warp computes the gradients of a sample's weight and location.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    find_grad_locations(Arguments<T> arguments, T* grad_locations, T* grad_attention) {
  using C = ComputeType<T>;
  const Sizes& sizes = arguments.sizes;
  const std::int64_t number = thread_index() / kWarp, row = sizes.heads * sizes.dims;
  if (number >= sizes.samples()) return;  // all threads of a warp
  const Level level = arguments.level_of(number);
  const std::int64_t head = arguments.head_of(number), b = head / sizes.heads / sizes.queries;
  const T* const of_head = arguments.values + b * sizes.keys * row + head % sizes.heads * sizes.dims;
  C to_attention = 0, to_x = 0, to_y = 0;
  each_key(sample_at(arguments.locations, number, level), level,
           [&](std::int64_t key, C near_x, C near_y, bool right, bool below) {
             C product = 0;
             for (std::int64_t d = threadIdx.x % kWarp; d < sizes.dims; d += kWarp) {
               product +=
                   static_cast<C>(arguments.grad[head * sizes.dims + d]) * static_cast<C>(of_head[key * row + d]);
             }
             to_attention += near_x * near_y * product;
             to_x += right ? near_y * product : -near_y * product;
             to_y += below ? near_x * product : -near_x * product;
           });
  for (int bits = kWarp / 2; bits > 0; bits /= 2) {
    to_attention += __shfl_xor_sync(0xffffffffu, to_attention, bits);
    to_x += __shfl_xor_sync(0xffffffffu, to_x, bits);
    to_y += __shfl_xor_sync(0xffffffffu, to_y, bits);
  }
  if (threadIdx.x % kWarp > 0) return;
  const C weight = static_cast<C>(arguments.attention[number]);
  grad_attention[number] = static_cast<T>(to_attention);
  grad_locations[2 * number] = static_cast<T>(to_x * weight * static_cast<C>(level.width));
  grad_locations[2 * number + 1] = static_cast<T>(to_y * weight * static_cast<C>(level.height));
}

/// The key of a sample is the value above and to the left of it: (b * heads + head) * keys + key. Where it doesn't
/// exist, the next one does. A sample without values comes behind all others.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    find_keys(Arguments<T> arguments, std::uint32_t* keys, std::uint32_t* numbers) {
  const Sizes& sizes = arguments.sizes;
  const std::int64_t number = thread_index();
  if (number >= sizes.samples()) return;
  const Level level = arguments.level_of(number);
  const auto sample = sample_at(arguments.locations, number, level);
  const std::int64_t head = arguments.head_of(number), b = head / sizes.heads / sizes.queries;
  const std::int64_t x = sample.x > 0 ? sample.x : 0, y = sample.y > 0 ? sample.y : 0;
  const std::int64_t key = (b * sizes.heads + head % sizes.heads) * sizes.keys + level.start + y * level.width + x;
  keys[number] = static_cast<std::uint32_t>(sample.inside ? key : sizes.b * sizes.heads * sizes.keys);
  numbers[number] = static_cast<std::uint32_t>(number);
}

/// A warp computes 32 numbers of the gradient of a value, from the samples whose key it is or one of its neighbours.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    find_grad_value(Arguments<T> arguments, const std::uint32_t* keys, const std::uint32_t* numbers, T* grad_values) {
  using C = ComputeType<T>;
  const Sizes& sizes = arguments.sizes;
  const std::int64_t parts = (sizes.dims + kWarp - 1) / kWarp, warp = thread_index() / kWarp, value = warp / parts;
  const std::int64_t d = warp % parts * kWarp + threadIdx.x % kWarp, count = sizes.samples();
  if (value >= sizes.b * sizes.heads * sizes.keys || d >= sizes.dims) return;
  const std::int64_t of_head = value / sizes.keys * sizes.keys, key = value - of_head;
  C total = 0;
  for (std::int64_t l = 0; l < sizes.levels; ++l) {
    const Level level = arguments.levels[l];
    const std::int64_t at = key - level.start;
    if (at < 0 || at >= level.height * level.width) continue;
    const std::int64_t x = at % level.width, y = at / level.width;
    for (int corner = 0; corner < 4; ++corner) {
      const std::int64_t left = x - corner % 2, top = y - corner / 2;
      const std::int64_t first = of_head + level.start + (top > 0 ? top : 0) * level.width + (left > 0 ? left : 0);
      const auto wanted = static_cast<std::uint32_t>(first);
      for (std::int64_t i = first_of(keys, count, wanted); i < count && keys[i] == wanted;) {
        C part = 0;  // few samples are added before they are added to the others
        for (int k = 0; k < 64 && i < count && keys[i] == wanted; ++k, ++i) {
          const std::int64_t number = numbers[i];
          if (number / sizes.points % sizes.levels != l) continue;
          const auto sample = sample_at(arguments.locations, number, level);
          if (sample.x != left || sample.y != top) continue;
          const C near_x = corner % 2 ? sample.right : C(1) - sample.right;
          const C near_y = corner / 2 ? sample.below : C(1) - sample.below;
          part += static_cast<C>(arguments.attention[number]) * near_y * near_x *
                  static_cast<C>(arguments.grad[arguments.head_of(number) * sizes.dims + d]);
        }
        total += part;
      }
    }
  }
  const std::int64_t b = value / sizes.keys / sizes.heads, head = value / sizes.keys % sizes.heads;
  grad_values[((b * sizes.keys + key) * sizes.heads + head) * sizes.dims + d] = static_cast<T>(total);
}

struct Cuda : Checked {
  struct Memory {
    std::span<Level> levels;
    SortedKeys sorted;
  };

  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    return {workspace.take<Level>(in.size("levels")), SortedKeys::take(workspace, Sizes::of(in).samples())};
  }

  template <typename T, typename I>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Memory memory = workspace(context.workspace(), in, attributes);
    const Sizes sizes = Sizes::of(in);
    OPGATE_RETURN_IF_ERROR(launch_levels<I>(context, in, sizes, memory.levels.data()));
    const Arguments<T> arguments{sizes,
                                 memory.levels.data(),
                                 in["grad_output"].data<T>(),
                                 in["value"].data<T>(),
                                 in["sampling_locations"].data<T>(),
                                 in["attention_weights"].data<T>()};
    return run(context, arguments, memory.sorted, out);
  }

 private:
  template <typename T>
  static Status run(Context& context, const Arguments<T>& arguments, const SortedKeys& sorted, Outputs& out) {
    const Sizes& sizes = arguments.sizes;
    const std::int64_t samples = sizes.samples();
    const std::int64_t parts = sizes.b * sizes.heads * sizes.keys * ((sizes.dims + kWarp - 1) / kWarp);
    const cudaStream_t stream = stream_of(context);
    if (samples > 0) {
      find_grad_locations<T><<<blocks_for(samples * kWarp, kThreads), kThreads, 0, stream>>>(
          arguments, out["grad_sampling_locations"].data<T>(), out["grad_attention_weights"].data<T>());
      OPGATE_RETURN_IF_ERROR(launched());
    }
    if (parts == 0) return {};
    if (samples > 0) {
      const unsigned blocks = blocks_for(samples, kThreads);
      find_keys<T><<<blocks, kThreads, 0, stream>>>(arguments, sorted.keys.data(), sorted.values.data());
      OPGATE_RETURN_IF_ERROR(launched());
      OPGATE_RETURN_IF_ERROR(sorted.sort(context, sizes.b * sizes.heads * sizes.keys));
    }
    find_grad_value<T><<<blocks_for(parts * kWarp, kThreads), kThreads, 0, stream>>>(
        arguments, sorted.sorted_keys.data(), sorted.sorted_values.data(), out["grad_value"].data<T>());
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::multi_scale_deformable_attention_backward

OPGATE_CUDA_KERNEL(MultiScaleDeformableAttentionBackward, opgate::ops::multi_scale_deformable_attention_backward::Cuda)

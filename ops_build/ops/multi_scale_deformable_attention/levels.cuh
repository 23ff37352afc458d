// What the kernels of MultiScaleDeformableAttention and of its gradient have in common on CUDA.
#pragma once

#include "core/elementwise.cuh"
#include "samples.h"

namespace opgate::ops::multi_scale_deformable_attention {

inline constexpr int kThreads = 256, kWarp = 32;

__device__ inline std::int64_t thread_index() { return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

/// Reads the levels. A wrong one gets no keys.
template <typename I>
__global__ void __launch_bounds__(kThreads)
    read_levels(std::int64_t count, std::int64_t keys, const I* shapes, const I* starts, Level* levels) {
  const std::int64_t i = thread_index();
  if (i >= count) return;
  const std::int64_t height = shapes[2 * i], width = shapes[2 * i + 1], start = starts[i];
  levels[i] = Level::fits(height, width, start, keys) ? Level{height, width, start} : Level{0, 0, 0};
}

template <typename I>
Status launch_levels(Context& context, const Inputs& in, const Sizes& sizes, Level* levels) {
  if (sizes.levels == 0) return {};
  read_levels<I><<<blocks_for(sizes.levels, kThreads), kThreads, 0, stream_of(context)>>>(
      sizes.levels, sizes.keys, in["spatial_shapes"].data<I>(), in["level_start_index"].data<I>(), levels);
  return launched();
}

/// The sample with this number, in the order of attention_weights.
template <typename T>
__device__ Sample<ComputeType<T>> sample_at(const T* locations, std::int64_t number, const Level& level) {
  using C = ComputeType<T>;
  return Sample<C>::at(static_cast<C>(locations[2 * number]), static_cast<C>(locations[2 * number + 1]), level);
}

/// Calls body(key, near_x, near_y, right, below) for each of the four keys around a sample that exists. `right` and
/// `below` say where the key lies, `near_x` and `near_y` how near it is along an axis.
template <typename C, typename Body>
__device__ void each_corner(const Sample<C>& sample, const Level& level, const Body& body) {
  if (!sample.inside) return;
#pragma unroll
  for (int corner = 0; corner < 4; ++corner) {
    const bool right = corner % 2, below = corner / 2;
    const std::int64_t x = sample.x + right, y = sample.y + below;
    if (x < 0 || y < 0 || x >= level.width || y >= level.height) continue;
    body(level.start + y * level.width + x, right ? sample.right : C(1) - sample.right,
         below ? sample.below : C(1) - sample.below, right, below);
  }
}

}  // namespace opgate::ops::multi_scale_deformable_attention

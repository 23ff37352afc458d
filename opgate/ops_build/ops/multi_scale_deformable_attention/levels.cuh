// What the kernels of MultiScaleDeformableAttention and of its gradient have in common on CUDA.
#pragma once

#include "kernel_toolkit/elementwise.cuh"
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
  return sample_in(static_cast<C>(locations[2 * number]), static_cast<C>(locations[2 * number + 1]), level);
}

/// Calls body(key, near_x, near_y, right, below) for each of the four keys around a sample that exists.
template <typename C, typename Body>
__device__ void each_key(const Sample<C>& sample, const Level& level, const Body& body) {
  sample.each_corner(level.width, level.height,
                     [&](std::int64_t x, std::int64_t y, C near_x, C near_y, bool right, bool below) {
                       body(level.start + y * level.width + x, near_x, near_y, right, below);
                     });
}

}  // namespace opgate::ops::multi_scale_deformable_attention

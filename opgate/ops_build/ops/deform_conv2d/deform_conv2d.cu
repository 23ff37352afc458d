#include "deform_conv2d.h"

#include "kernel_toolkit/elementwise.cuh"
#include "sample.cuh"

namespace opgate::ops::deform_conv2d {
namespace {

constexpr int kThreads = 256;

/// A block computes kTile output channels of kTile output pixels. It samples kDepth channels of a tap at once.
constexpr int kTile = 64, kDepth = 16, kEach = 4;

template <typename T>
struct Arguments {
  Geometry g;
  const T *input, *weight, *offset, *bias, *mask;
};

/// The input where a tap of an output pixel samples it, times the mask.
template <typename T>
class Sampler {
 public:
  using C = ComputeType<T>;

  __device__ Sampler(const Arguments<T>& arguments, std::int64_t image, std::int64_t pixel)
      : arguments_(arguments), image_(image), pixel_(pixel) {}

  __device__ C operator()(std::int64_t channel, std::int64_t tap) {
    const Geometry& g = arguments_.g;
    const std::int64_t group = channel / g.co();
    if (group != group_ || tap != tap_) {
      group_ = group;
      tap_ = tap;
      sample_ = sample_of(g, arguments_.offset, image_, group, tap, pixel_);
      const std::int64_t at = ((image_ * g.offset_groups + group) * g.taps() + tap) * g.pixels() + pixel_;
      factor_ = arguments_.mask ? static_cast<C>(arguments_.mask[at]) : C(1);
    }
    const T* const plane = arguments_.input + (image_ * g.c + channel) * g.h * g.w;
    C sum = 0;
    sample_.each_corner(g.w, g.h, [&](std::int64_t x, std::int64_t y, C near_x, C near_y, bool, bool) {
      sum += near_y * near_x * factor_ * static_cast<C>(plane[y * g.w + x]);
    });
    return sum;
  }

 private:
  const Arguments<T>& arguments_;
  std::int64_t image_, pixel_, group_ = -1, tap_ = -1;
  Sample<C> sample_{};
  C factor_ = 0;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) convolve(Arguments<T> arguments, std::int64_t tiles, T* output) {
  using C = ComputeType<T>;
  __shared__ C columns[kDepth][kTile], filters[kDepth][kTile + 1];
  const Geometry& g = arguments.g;
  const std::int64_t pixel_tiles = (g.pixels() + kTile - 1) / kTile, channel_tiles = (g.ocg() + kTile - 1) / kTile;
  // What the thread loads: kEach channels of a pixel and of a filter. What it computes: kEach filters of kEach pixels.
  const int lane = static_cast<int>(threadIdx.x) % kTile, row = static_cast<int>(threadIdx.x) / kTile * kEach;
  const int own_pixel = static_cast<int>(threadIdx.x) % kDepth * kEach;
  const int own_filter = static_cast<int>(threadIdx.x) / kDepth * kEach;
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::int64_t first_pixel = tile % pixel_tiles * kTile;
    const std::int64_t first_filter = tile / pixel_tiles % channel_tiles * kTile;
    const std::int64_t group = tile / pixel_tiles / channel_tiles % g.groups;
    const std::int64_t image = tile / pixel_tiles / channel_tiles / g.groups;
    const bool has_pixel = first_pixel + lane < g.pixels(), has_filter = first_filter + lane < g.ocg();
    Sampler<T> sample(arguments, image, first_pixel + lane);
    const T* const filter = arguments.weight + (group * g.ocg() + first_filter + lane) * g.cg * g.taps();
    C sums[kEach][kEach] = {};
    for (std::int64_t tap = 0; tap < g.taps(); ++tap) {
      for (std::int64_t channel = 0; channel < g.cg; channel += kDepth) {
#pragma unroll 1
        for (int k = row; k < row + kEach; ++k) {
          const bool exists = channel + k < g.cg;
          columns[k][lane] = exists && has_pixel ? sample(group * g.cg + channel + k, tap) : C(0);
          filters[k][lane] = exists && has_filter ? static_cast<C>(filter[(channel + k) * g.taps() + tap]) : C(0);
        }
        __syncthreads();
#pragma unroll 4
        for (int k = 0; k < kDepth; ++k) {
#pragma unroll
          for (int i = 0; i < kEach; ++i) {
#pragma unroll
            for (int j = 0; j < kEach; ++j) sums[i][j] += filters[k][own_filter + i] * columns[k][own_pixel + j];
          }
        }
        __syncthreads();
      }
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t in_group = first_filter + own_filter + i, channel = group * g.ocg() + in_group;
      if (in_group >= g.ocg()) continue;
      const C bias = arguments.bias ? static_cast<C>(arguments.bias[channel]) : C(0);
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const std::int64_t pixel = first_pixel + own_pixel + j;
        if (pixel < g.pixels())
          output[(image * g.oc + channel) * g.pixels() + pixel] = static_cast<T>(sums[i][j] + bias);
      }
    }
  }
}

struct Cuda : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Geometry g = Geometry::of(in, attributes);
    if (g.n * g.oc * g.pixels() == 0) return {};
    const Arguments<T> arguments{g,
                                 in["input"].data<T>(),
                                 in["weight"].data<T>(),
                                 in["offset"].data<T>(),
                                 in.has("bias") ? in["bias"].data<T>() : nullptr,
                                 in.has("mask") ? in["mask"].data<T>() : nullptr};
    const std::int64_t tiles = g.n * g.groups * ((g.pixels() + kTile - 1) / kTile) * ((g.ocg() + kTile - 1) / kTile);
    convolve<T><<<blocks_for(tiles, 1), kThreads, 0, stream_of(context)>>>(arguments, tiles, out["output"].data<T>());
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::deform_conv2d

OPGATE_CUDA_KERNEL(DeformConv2d, opgate::ops::deform_conv2d::Cuda)

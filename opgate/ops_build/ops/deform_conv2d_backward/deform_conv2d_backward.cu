#include "deform_conv2d_backward.h"

#include "kernel_toolkit/rows.cuh"
#include "kernel_toolkit/sorted.cuh"
#include "ops/deform_conv2d/sample.cuh"

namespace opgate::ops::deform_conv2d_backward {
namespace {

using namespace deform_conv2d;

constexpr int kThreads = 256, kWarp = 32;
static_assert(kThreads == rows::kThreads);

/// A block computes kTile rows of kTile columns of a product, from kDepth numbers of each at once.
constexpr int kTile = 64, kDepth = 16, kEach = 4;

/// What the kernels of an image share. A pixel of `columns` and of `grad_columns` has the numbers (tap, channel).
template <typename T>
struct Arguments {
  using C = ComputeType<T>;

  Geometry g;
  std::int64_t image;
  const T *upstream, *input, *weight, *offset, *mask;
  C *channels_last, *columns, *grad_columns, *sums;

  OPGATE_HOST_DEVICE std::int64_t depth() const { return g.taps() * g.c; }
  OPGATE_HOST_DEVICE std::int64_t samples() const { return g.offset_groups * g.taps() * g.pixels(); }
  __device__ C upstream_at(std::int64_t channel, std::int64_t pixel) const {
    return static_cast<C>(upstream[(image * g.oc + channel) * g.pixels() + pixel]);
  }
  /// The gradient of a filter's number (tap, channel of the group) lies where the number does.
  __device__ std::int64_t weight_at(std::int64_t channel, std::int64_t number) const {
    return (channel * g.cg + number % g.cg) * g.taps() + number / g.cg;
  }
  /// Where a number (tap, channel of a group) is among those of a pixel.
  __device__ std::int64_t column_of(std::int64_t group, std::int64_t number) const {
    return number / g.cg * g.c + group * g.cg + number % g.cg;
  }
};

__device__ std::int64_t thread_index() { return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

/// Calls store(row, column, sum over k < depth of a(row, k) b(k, column)) for a tile. All threads of a block must call
/// this.
template <typename C, typename A, typename B, typename Store>
__device__ void multiply_tile(std::int64_t first_row, std::int64_t rows, std::int64_t first_column,
                              std::int64_t columns, std::int64_t depth, const A& a, const B& b, const Store& store) {
  __shared__ C left[kDepth][kTile], right[kDepth][kTile];
  const int lane = static_cast<int>(threadIdx.x) % kTile, from = static_cast<int>(threadIdx.x) / kTile * kEach;
  const int own_column = static_cast<int>(threadIdx.x) % kDepth * kEach;
  const int own_row = static_cast<int>(threadIdx.x) / kDepth * kEach;
  const bool has_row = first_row + lane < rows, has_column = first_column + lane < columns;
  C sums[kEach][kEach] = {};
  for (std::int64_t k = 0; k < depth; k += kDepth) {
#pragma unroll 1
    for (int i = from; i < from + kEach; ++i) {
      const bool exists = k + i < depth;
      left[i][lane] = exists && has_row ? a(first_row + lane, k + i) : C(0);
      right[i][lane] = exists && has_column ? b(k + i, first_column + lane) : C(0);
    }
    __syncthreads();
#pragma unroll 4
    for (int i = 0; i < kDepth; ++i) {
#pragma unroll
      for (int r = 0; r < kEach; ++r) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) sums[r][j] += left[i][own_row + r] * right[i][own_column + j];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const std::int64_t row = first_row + own_row + r, column = first_column + own_column + j;
      if (row < rows && column < columns) store(row, column, sums[r][j]);
    }
  }
}

__host__ __device__ std::int64_t tiles_of(std::int64_t count) { return (count + kTile - 1) / kTile; }

/// Writes the channels of each pixel side by side.
template <typename T>
__global__ void __launch_bounds__(kThreads) write_channels_last(Arguments<T> arguments) {
  const std::int64_t i = thread_index(), size = arguments.g.h * arguments.g.w;
  if (i >= size * arguments.g.c) return;
  const std::int64_t pixel = i / arguments.g.c, channel = i % arguments.g.c;
  arguments.channels_last[i] =
      static_cast<ComputeType<T>>(arguments.input[(arguments.image * arguments.g.c + channel) * size + pixel]);
}

/// The gradients of the samples: upstream times filters.
template <typename T>
__global__ void __launch_bounds__(kThreads, 3) find_grad_columns(Arguments<T> arguments, std::int64_t tiles) {
  using C = ComputeType<T>;
  const Geometry& g = arguments.g;
  const std::int64_t numbers = g.taps() * g.cg, pixel_tiles = tiles_of(g.pixels()), number_tiles = tiles_of(numbers);
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::int64_t group = tile / pixel_tiles / number_tiles, first = group * g.ocg();
    multiply_tile<C>(
        tile % pixel_tiles * kTile, g.pixels(), tile / pixel_tiles % number_tiles * kTile, numbers, g.ocg(),
        [&](std::int64_t pixel, std::int64_t k) { return arguments.upstream_at(first + k, pixel); },
        [&](std::int64_t k, std::int64_t number) {
          return static_cast<C>(arguments.weight[arguments.weight_at(first + k, number)]);
        },
        [&](std::int64_t pixel, std::int64_t number, C sum) {
          arguments.grad_columns[pixel * arguments.depth() + arguments.column_of(group, number)] = sum;
        });
  }
}

/// A warp computes the samples of a tap of an output pixel, the gradients of its offset and mask, and its key: the
/// pixel above and to the left of it, or where that doesn't exist, the next one. A sample outside comes behind all
/// others.
template <typename T>
__global__ void __launch_bounds__(kThreads) find_grad_offset(Arguments<T> arguments, std::uint32_t* keys,
                                                             std::uint32_t* numbers, T* grad_offset, T* grad_mask) {
  using C = ComputeType<T>;
  const Geometry& g = arguments.g;
  const std::int64_t number = thread_index() / kWarp, lane = threadIdx.x % kWarp;
  if (number >= arguments.samples()) return;  // all threads of a warp
  const std::int64_t pixel = number % g.pixels(), tap = number / g.pixels() % g.taps();
  const std::int64_t group = number / g.pixels() / g.taps();
  const auto sample = sample_of(g, arguments.offset, arguments.image, group, tap, pixel);
  const C factor =
      arguments.mask ? static_cast<C>(arguments.mask[arguments.image * arguments.samples() + number]) : C(1);
  C to_y = 0, to_x = 0, to_mask = 0;
  for (std::int64_t i = lane; i < g.co(); i += kWarp) {
    const std::int64_t channel = group * g.co() + i, at = pixel * arguments.depth() + tap * g.c + channel;
    const C gradient = arguments.grad_columns[at];
    C value = 0;
    sample.each_corner(g.w, g.h, [&](std::int64_t x, std::int64_t y, C near_x, C near_y, bool right, bool below) {
      const C here = arguments.channels_last[(y * g.w + x) * g.c + channel];
      value += near_y * near_x * here;
      to_y += (below ? near_x : -near_x) * here * gradient;
      to_x += (right ? near_y : -near_y) * here * gradient;
    });
    to_mask += value * gradient;
    arguments.columns[at] = value * factor;
    arguments.grad_columns[at] = gradient * factor;
  }
  for (int bits = kWarp / 2; bits > 0; bits /= 2) {
    to_y += __shfl_xor_sync(0xffffffffu, to_y, bits);
    to_x += __shfl_xor_sync(0xffffffffu, to_x, bits);
    to_mask += __shfl_xor_sync(0xffffffffu, to_mask, bits);
  }
  if (lane > 0) return;
  const std::int64_t at = g.offset_at(arguments.image, group, tap) + pixel;
  grad_offset[at] = static_cast<T>(to_y * factor);
  grad_offset[at + g.pixels()] = static_cast<T>(to_x * factor);
  if (grad_mask) grad_mask[arguments.image * arguments.samples() + number] = static_cast<T>(to_mask);
  const std::int64_t x = sample.x > 0 ? sample.x : 0, y = sample.y > 0 ? sample.y : 0, size = g.h * g.w;
  keys[number] = static_cast<std::uint32_t>(sample.inside ? group * size + y * g.w + x : g.offset_groups * size);
  numbers[number] = static_cast<std::uint32_t>(number);
}

/// A warp computes 32 channels of a pixel of the input, from the samples whose key it is or one of its neighbours.
template <typename T>
__global__ void __launch_bounds__(kThreads, 3)
    find_grad_input(Arguments<T> arguments, const std::uint32_t* keys, const std::uint32_t* numbers, T* grad_input) {
  using C = ComputeType<T>;
  const Geometry& g = arguments.g;
  const std::int64_t parts = (g.co() + kWarp - 1) / kWarp, warp = thread_index() / kWarp, size = g.h * g.w;
  const std::int64_t in_group = warp % parts * kWarp + threadIdx.x % kWarp, place = warp / parts % size;
  const std::int64_t group = warp / parts / size, count = arguments.samples();
  if (group >= g.offset_groups || in_group >= g.co()) return;
  const std::int64_t x = place % g.w, y = place / g.w, channel = group * g.co() + in_group;
  C total = 0;
  for (int corner = 0; corner < 4; ++corner) {
    const std::int64_t left = x - corner % 2, top = y - corner / 2;
    const auto key = static_cast<std::uint32_t>(group * size + (top > 0 ? top : 0) * g.w + (left > 0 ? left : 0));
    for (std::int64_t i = first_of(keys, count, key); i < count && keys[i] == key;) {
      C part = 0;  // few samples are added before they are added to the others
      for (int k = 0; k < 64 && i < count && keys[i] == key; ++k, ++i) {
        const std::int64_t pixel = numbers[i] % g.pixels(), tap = numbers[i] / g.pixels() % g.taps();
        const auto sample = sample_of(g, arguments.offset, arguments.image, group, tap, pixel);
        if (sample.x != left || sample.y != top) continue;
        const C near_x = corner % 2 ? sample.right : C(1) - sample.right;
        const C near_y = corner / 2 ? sample.below : C(1) - sample.below;
        part += near_y * near_x * arguments.grad_columns[pixel * arguments.depth() + tap * g.c + channel];
      }
      total += part;
    }
  }
  grad_input[(arguments.image * g.c + channel) * size + place] = static_cast<T>(total);
}

/// Adds the image's part of the gradients of the filters: samples times upstream.
template <typename T>
__global__ void __launch_bounds__(kThreads) add_grad_weight(Arguments<T> arguments, std::int64_t tiles) {
  using C = ComputeType<T>;
  const Geometry& g = arguments.g;
  const std::int64_t numbers = g.taps() * g.cg, number_tiles = tiles_of(numbers), channel_tiles = tiles_of(g.ocg());
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::int64_t group = tile / number_tiles / channel_tiles, first = group * g.ocg();
    multiply_tile<C>(
        tile % number_tiles * kTile, numbers, tile / number_tiles % channel_tiles * kTile, g.ocg(), g.pixels(),
        [&](std::int64_t number, std::int64_t pixel) {
          return arguments.columns[pixel * arguments.depth() + arguments.column_of(group, number)];
        },
        [&](std::int64_t pixel, std::int64_t k) { return arguments.upstream_at(first + k, pixel); },
        [&](std::int64_t number, std::int64_t k, C sum) {
          C* const to = arguments.sums + arguments.weight_at(first + k, number);
          *to = arguments.image == 0 ? sum : *to + sum;
        });
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    store_grad_weight(Arguments<T> arguments, std::int64_t count, T* grad_weight) {
  const std::int64_t i = thread_index();
  if (i < count) grad_weight[i] = static_cast<T>(arguments.g.n > 0 ? arguments.sums[i] : ComputeType<T>(0));
}

/// A block computes the gradient of a channel's bias.
template <typename T>
__global__ void __launch_bounds__(kThreads) find_grad_bias(Arguments<T> arguments, T* grad_bias) {
  using C = ComputeType<T>;
  const Geometry& g = arguments.g;
  for (std::int64_t k = blockIdx.x; k < g.oc; k += gridDim.x) {
    const C sum = rows::sum<C>(g.n * g.pixels(), [&](std::int64_t i) {
      return static_cast<C>(arguments.upstream[(i / g.pixels() * g.oc + k) * g.pixels() + i % g.pixels()]);
    });
    if (threadIdx.x == 0) grad_bias[k] = static_cast<T>(sum);
  }
}

template <typename T>
class Gradients {
 public:
  using C = ComputeType<T>;

  Gradients(Context& context, const Arguments<T>& arguments, const SortedKeys& sorted, Outputs& out)
      : context_(context), arguments_(arguments), sorted_(sorted), out_(out), stream_(stream_of(context)) {}

  Status compute() {
    const Geometry& g = arguments_.g;
    for (arguments_.image = 0; arguments_.image < g.n; ++arguments_.image) {
      if (arguments_.samples() > 0) OPGATE_RETURN_IF_ERROR(sample_image());
      if (g.h * g.w > 0) {
        const std::int64_t warps = g.offset_groups * g.h * g.w * ((g.co() + kWarp - 1) / kWarp);
        find_grad_input<T><<<blocks_for(warps * kWarp, kThreads), kThreads, 0, stream_>>>(
            arguments_, sorted_.sorted_keys.data(), sorted_.sorted_values.data(),
            out_["grad_input"].template data<T>());
        OPGATE_RETURN_IF_ERROR(launched());
      }
      const std::int64_t tiles = g.groups * tiles_of(g.taps() * g.cg) * tiles_of(g.ocg());
      if (tiles == 0) continue;
      add_grad_weight<T><<<blocks_for(tiles, 1), kThreads, 0, stream_>>>(arguments_, tiles);
      OPGATE_RETURN_IF_ERROR(launched());
    }
    if (g.oc == 0) return {};
    const std::int64_t count = g.oc * g.cg * g.taps();
    T* const grad_weight = out_["grad_weight"].template data<T>();
    store_grad_weight<T><<<blocks_for(count, kThreads), kThreads, 0, stream_>>>(arguments_, count, grad_weight);
    OPGATE_RETURN_IF_ERROR(launched());
    if (!out_.has("grad_bias")) return {};
    find_grad_bias<T><<<blocks_for(g.oc, 1), kThreads, 0, stream_>>>(arguments_, out_["grad_bias"].template data<T>());
    return launched();
  }

 private:
  Status sample_image() {
    const Geometry& g = arguments_.g;
    if (g.h * g.w > 0) {
      write_channels_last<T><<<blocks_for(g.h * g.w * g.c, kThreads), kThreads, 0, stream_>>>(arguments_);
      OPGATE_RETURN_IF_ERROR(launched());
    }
    const std::int64_t tiles = g.groups * tiles_of(g.pixels()) * tiles_of(g.taps() * g.cg);
    find_grad_columns<T><<<blocks_for(tiles, 1), kThreads, 0, stream_>>>(arguments_, tiles);
    OPGATE_RETURN_IF_ERROR(launched());
    T* const grad_mask = out_.has("grad_mask") ? out_["grad_mask"].template data<T>() : nullptr;
    find_grad_offset<T><<<blocks_for(arguments_.samples() * kWarp, kThreads), kThreads, 0, stream_>>>(
        arguments_, sorted_.keys.data(), sorted_.values.data(), out_["grad_offset"].template data<T>(), grad_mask);
    OPGATE_RETURN_IF_ERROR(launched());
    return sorted_.sort(context_);
  }

  Context& context_;
  Arguments<T> arguments_;
  const SortedKeys& sorted_;
  Outputs& out_;
  cudaStream_t stream_;
};

struct Cuda : Checked {
  template <typename T>
  struct Memory {
    std::span<ComputeType<T>> channels_last, columns, grad_columns, sums;
    SortedKeys sorted;
  };

  template <typename T>
  static Memory<T> workspace(Workspace& workspace, const Inputs& in, const Attributes& attributes) {
    using C = ComputeType<T>;
    const Geometry g = Geometry::of(in, attributes);
    const std::int64_t columns = g.pixels() * g.taps() * g.c;
    return {workspace.take<C>(g.h * g.w * g.c), workspace.take<C>(columns), workspace.take<C>(columns),
            workspace.take<C>(g.oc * g.cg * g.taps()),
            SortedKeys::take(workspace, g.offset_groups * g.taps() * g.pixels())};
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Memory<T> memory = workspace<T>(context.workspace(), in, attributes);
    const Arguments<T> arguments{Geometry::of(in, attributes),
                                 0,
                                 in["grad_output"].data<T>(),
                                 in["input"].data<T>(),
                                 in["weight"].data<T>(),
                                 in["offset"].data<T>(),
                                 in.has("mask") ? in["mask"].data<T>() : nullptr,
                                 memory.channels_last.data(),
                                 memory.columns.data(),
                                 memory.grad_columns.data(),
                                 memory.sums.data()};
    return Gradients<T>(context, arguments, memory.sorted, out).compute();
  }
};

}  // namespace
}  // namespace opgate::ops::deform_conv2d_backward

OPGATE_CUDA_KERNEL(DeformConv2dBackward, opgate::ops::deform_conv2d_backward::Cuda)

#include "deform_conv2d.h"

#include "columns.cuh"

namespace opgate::ops::deform_conv2d {
namespace {

template <typename T>
struct Tensors {
  const T *input, *weight, *offset, *bias, *mask;  ///< bias and mask may be null
  T* output;
};

/// Output pixels of some images, one image after the other, whose columns are kept at once.
struct Chunk {
  std::int64_t image;
  std::uint32_t first, count, pixels;  ///< `first` counts from the first pixel of `image`, which has `pixels`

  struct Place {
    std::int64_t image;
    std::uint32_t pixel;
  };
  __device__ Place place(std::uint32_t row) const { return {image + (first + row) / pixels, (first + row) % pixels}; }
};

/// Writes the columns of a chunk. Some threads share a sample.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    find_columns(Arranged<T> g, Chunk chunk, Tensors<T> tensors, int lanes, const T* pictures, T* columns) {
  using C = ComputeType<T>;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const std::int64_t thread = thread_index() >> (__ffs(lanes) - 1);
  if (thread >= chunk.count * g.offset_groups * g.taps()) return;
  const auto number = static_cast<std::uint32_t>(thread), taps = static_cast<std::uint32_t>(g.taps());
  const std::uint32_t sample = number / chunk.count, row = number % chunk.count;
  const std::uint32_t group = sample / taps, tap = sample % taps;
  const auto [image, pixel] = chunk.place(row);
  const auto corners = Corners<C>::of(g, tensors.offset, tensors.mask, image, group, tap, pixel);
  const T* const from =
      pictures + (image - chunk.image) * g.picture() + std::int64_t{group} * g.sample_vectors * g.kVector;
  C weights[4];
#pragma unroll
  for (int corner = 0; corner < 4; ++corner) weights[corner] = corners.weight(corner);
  for (int vector = lane; vector < g.sample_vectors; vector += lanes) {
    products::Vector<T> numbers[4], result;
    corners.load(from, g.row, vector, numbers);
#pragma unroll
    for (int j = 0; j < g.kVector; ++j) {
      C sum = 0;
#pragma unroll
      for (int corner = 0; corner < 4; ++corner) sum += weights[corner] * static_cast<C>(numbers[corner].values[j]);
      result.values[j] = static_cast<T>(sum);
    }
    *reinterpret_cast<products::Vector<T>*>(columns + row * g.depth + g.in_column(group, tap, vector)) = result;
  }
}

/// Multiplies the columns of a chunk by the filters. Without `parts` it adds the bias and writes the output, else it
/// writes the sums of each part of the depth.
template <typename T>
__global__ void __launch_bounds__(products::kThreads, products::kBlocks<T>)
    multiply(Arranged<T> g, Chunk chunk, products::Grid grid, const T* columns, const T* filters, Tensors<T> tensors,
             ComputeType<T>* parts) {
  using C = ComputeType<T>;
  const auto tile = products::Place::of(grid);
  const std::int64_t channel = tile.group * g.filters_of_group + tile.first_column;
  const auto first_row = static_cast<std::uint32_t>(tile.first_row);
  const products::Matrix<T, true> rows{columns + tile.group * g.group_depth, g.depth, chunk.count};
  const products::Matrix<T, true> of_group{filters + tile.group * g.filters_of_group * g.group_depth, g.group_depth,
                                           g.filters_of_group};
  const auto first = chunk.place(first_row);
  if (parts) parts += (tile.split * g.oc + channel) * chunk.count + first_row;
  products::multiply_tile<true>(
      rows, tile.first_row, of_group, tile.first_column, tile.begin, tile.end, [&](int row, int filter, C sum) {
        if (parts) {
          parts[filter * std::int64_t{chunk.count} + row] = sum;
          return;
        }
        std::int64_t image = first.image;
        std::uint32_t pixel = first.pixel + static_cast<std::uint32_t>(row);
        if (pixel >= chunk.pixels) {
          image += pixel / chunk.pixels;
          pixel %= chunk.pixels;
        }
        const C bias = tensors.bias ? static_cast<C>(tensors.bias[channel + filter]) : C(0);
        tensors.output[(image * g.oc + channel + filter) * chunk.pixels + pixel] = static_cast<T>(sum + bias);
      });
}

/// Adds the parts of the sums, in their order.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_parts(Geometry g, Chunk chunk, std::int64_t splits, const ComputeType<T>* parts, Tensors<T> tensors) {
  using C = ComputeType<T>;
  const std::int64_t i = thread_index(), channel = quotient(i, chunk.count);
  if (channel >= g.oc) return;
  C sum = 0;
  for (std::int64_t split = 0; split < splits; ++split) sum += parts[split * g.oc * chunk.count + i];
  const auto [image, pixel] = chunk.place(static_cast<std::uint32_t>(i - channel * chunk.count));
  const C bias = tensors.bias ? static_cast<C>(tensors.bias[channel]) : C(0);
  tensors.output[(image * g.oc + channel) * chunk.pixels + pixel] = static_cast<T>(sum + bias);
}

/// A thread computes kFew output channels of a pixel.
template <typename T>
__global__ void __launch_bounds__(kThreads) convolve_few(Arranged<T> g, Tensors<T> tensors) {
  using C = ComputeType<T>;
  const std::int64_t all = g.n * g.pixels(), unit = quotient(thread_index(), all);
  const std::int64_t first = unit * kFew, flat = thread_index() - unit * all;
  if (first >= g.oc) return;
  const std::int64_t image = quotient(flat, g.pixels());
  const auto pixel = static_cast<std::uint32_t>(flat - image * g.pixels());
  const std::int64_t of_offset_group = g.channels_of_offset_group, first_group = quotient(first, g.filters_of_group);
  const int count = static_cast<int>(g.oc - first < kFew ? g.oc - first : kFew);
  unsigned starts = 1;  // bit k: a group begins at output channel first + k
  for (int k = 1, next = static_cast<int>((first_group + 1) * g.filters_of_group - first); k < count; ++k) {
    if (k != next) continue;
    starts |= 1u << k;
    next += static_cast<int>(g.filters_of_group);
  }
  C sums[kFew] = {};
  for (std::uint32_t tap = 0; tap < g.taps(); ++tap) {
    Corners<C> corners;
    std::int64_t first_channel = g.c;  // of the offset group that `corners` belongs to
    for (std::int64_t i = 0; i < g.cg; ++i) {
      std::int64_t channel = first_group * g.cg + i;
      C value = 0;
#pragma unroll
      for (int k = 0; k < kFew; ++k) {
        if (k >= count) break;
        if (starts >> k & 1) {
          if (channel < first_channel || channel >= first_channel + of_offset_group) {
            const auto offset_group = static_cast<std::uint32_t>(quotient(channel, of_offset_group));
            first_channel = offset_group * of_offset_group;
            corners = Corners<C>::of(g, tensors.offset, tensors.mask, image, offset_group, tap, pixel);
          }
          const T* const plane = tensors.input + (image * g.c + channel) * g.h * g.w;
          value = 0;
#pragma unroll
          for (int corner = 0; corner < 4; ++corner) {
            if (corners.exists(corner)) value += corners.weight(corner) * static_cast<C>(plane[corners.pixel[corner]]);
          }
          channel += g.cg;
        }
        sums[k] += static_cast<C>(tensors.weight[((first + k) * g.cg + i) * g.taps() + tap]) * value;
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kFew; ++k) {
    if (k >= count) break;
    const C bias = tensors.bias ? static_cast<C>(tensors.bias[first + k]) : C(0);
    tensors.output[(image * g.oc + first + k) * g.pixels() + pixel] = static_cast<T>(sums[k] + bias);
  }
}

struct Cuda : Checked {
  template <typename T>
  struct Memory {
    std::span<T> filters, pictures, columns;
    std::span<ComputeType<T>> parts;
  };

  template <typename T>
  static std::int64_t images_together(const Arranged<T>& g) {
    return std::min(together(g.n, g.picture() * sizeof(T), kChunkBytes), g.most_images());
  }

  /// How many rows have their columns at once.
  template <typename T>
  static std::int64_t rows_together(const Arranged<T>& g) {
    return together(images_together(g) * g.pixels(), g.depth * sizeof(T), kChunkBytes, products::kRows);
  }

  template <typename T>
  static Memory<T> workspace(Workspace& workspace, const Inputs& in, const Attributes& attributes) {
    const auto g = Arranged<T>::of(Geometry::of(in, attributes));
    if (few(g) || g.n * g.pixels() == 0) return {};
    return {workspace.take<T>(g.oc * g.group_depth),
            workspace.take<T>(together_bytes(g.n, g.picture() * sizeof(T), kChunkBytes) / sizeof(T)),
            workspace.take<T>(together_bytes(g.n * g.pixels(), g.depth * sizeof(T), kChunkBytes) / sizeof(T)),
            workspace.take<ComputeType<T>>(products::Grid::most_parts(g.n * g.pixels() * g.oc, g.group_depth))};
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const auto g = Arranged<T>::of(Geometry::of(in, attributes));
    if (g.n * g.oc * g.pixels() == 0) return {};
    const Tensors<T> tensors{in["input"].data<T>(),
                             in["weight"].data<T>(),
                             in["offset"].data<T>(),
                             in.has("bias") ? in["bias"].data<T>() : nullptr,
                             in.has("mask") ? in["mask"].data<T>() : nullptr,
                             out["output"].data<T>()};
    const cudaStream_t stream = stream_of(context);
    if (few(g)) {
      const std::int64_t threads = g.n * g.pixels() * ((g.oc + kFew - 1) / kFew);
      convolve_few<T><<<blocks_for(threads, kThreads), kThreads, 0, stream>>>(g, tensors);
      return launched();
    }
    const Memory<T> memory = workspace<T>(context.workspace(), in, attributes);
    const std::int64_t images_at_once = images_together(g), rows = rows_together(g);
    const auto grid = products::Grid::of(rows, g.ocg(), g.group_depth, g.groups);
    for (std::int64_t image = 0; image < g.n; image += images_at_once) {
      const std::int64_t images = std::min(images_at_once, g.n - image);
      const Arrange<T> all{g,
                           images,
                           image == 0 ? tensors.weight : nullptr,
                           tensors.input + image * g.c * g.size(),
                           memory.filters.data(),
                           memory.pictures.data()};
      arrange<T><<<blocks_for(all.vectors(), kThreads), kThreads, 0, stream>>>(all);
      OPGATE_RETURN_IF_ERROR(launched());
      for (std::int64_t first = 0; first < images * g.pixels(); first += rows) {
        const Chunk chunk{image, static_cast<std::uint32_t>(first),
                          static_cast<std::uint32_t>(std::min(rows, images * g.pixels() - first)),
                          static_cast<std::uint32_t>(g.pixels())};
        OPGATE_RETURN_IF_ERROR(convolve(g, chunk, grid, memory, tensors, stream));
      }
    }
    return {};
  }

 private:
  template <typename T>
  static Status convolve(const Arranged<T>& g, const Chunk& chunk, products::Grid grid, const Memory<T>& memory,
                         const Tensors<T>& tensors, cudaStream_t stream) {
    const int lanes = g.lanes();
    const std::int64_t threads = chunk.count * g.offset_groups * g.taps() * lanes;
    find_columns<T><<<blocks_for(threads, kThreads), kThreads, 0, stream>>>(
        g, chunk, tensors, lanes, memory.pictures.data(), memory.columns.data());
    OPGATE_RETURN_IF_ERROR(launched());
    grid.row_tiles = grid.tiles_of(chunk.count, products::kRows);
    multiply<T><<<blocks_for(grid.tiles(), 1), products::kThreads, 0, stream>>>(
        g, chunk, grid, memory.columns.data(), memory.filters.data(), tensors,
        grid.splits > 1 ? memory.parts.data() : nullptr);
    OPGATE_RETURN_IF_ERROR(launched());
    if (grid.splits == 1) return {};
    add_parts<T><<<blocks_for(g.oc * chunk.count, kThreads), kThreads, 0, stream>>>(g, chunk, grid.splits,
                                                                                    memory.parts.data(), tensors);
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::deform_conv2d

OPGATE_CUDA_KERNEL(DeformConv2d, opgate::ops::deform_conv2d::Cuda)

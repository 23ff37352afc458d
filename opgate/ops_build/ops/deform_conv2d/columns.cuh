// What the CUDA kernels of DeformConv2d and of its gradient share: where taps sample the pictures, and the order in
// which the kernels keep pictures, filters and samples.
#pragma once

#include <numeric>

#include "geometry.h"
#include "kernel_toolkit/products.cuh"
#include "kernel_toolkit/sample.h"

namespace opgate::ops::deform_conv2d {

inline constexpr int kThreads = 256, kWarp = 32;

/// About so many bytes of pictures or of columns are kept at once: they stay in the second cache of a large GPU.
inline constexpr std::int64_t kChunkBytes = 32 << 20;

__device__ inline std::int64_t thread_index() { return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

/// a / b for numbers that aren't negative. A GPU divides 32 bits in a third of the time.
__device__ inline std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if ((a | b) >> 32) return a / b;
  return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
}

/// So many of `count` things of `bytes` are kept at once that they have at most `most_bytes`: pieces of about the same
/// size, a multiple of `unit` if several units fit.
inline std::int64_t together(std::int64_t count, std::int64_t bytes, std::int64_t most_bytes, std::int64_t unit = 1) {
  std::int64_t most = std::max<std::int64_t>(1, most_bytes / bytes);
  if (most >= unit) most = most / unit * unit;
  const std::int64_t pieces = std::max<std::int64_t>(1, (count + most - 1) / most),
                     size = (count + pieces - 1) / pieces;
  return std::min({count, most, (size + unit - 1) / unit * unit});
}

/// The bytes that together() may need, which don't shrink if there are more things or larger ones.
inline std::int64_t together_bytes(std::int64_t count, std::int64_t bytes, std::int64_t most_bytes) {
  return std::min(count * bytes, std::max(most_bytes, bytes));
}

/// The order of the numbers. Channels that lie side by side and have one group and one offset group are a segment,
/// which is padded with zeros to whole vectors. A pixel of a picture has its channels side by side, and behind the
/// pixels comes one of zeros, for samples outside. A column is what the filters see at an output pixel: the numbers
/// (segment, tap, channel). A filter has the same order, in its group.
template <typename T>
struct Arranged : Geometry {
  static constexpr int kVector = products::kVector<T>;

  // What a GPU would divide by otherwise.
  std::int64_t channels_of_offset_group, filters_of_group;
  std::int64_t segment, segments, padded;  ///< a segment's channels, how many segments there are, and a padded one
  std::int64_t row, depth, group_depth;    ///< the numbers of a pixel, of a column, and of a filter
  int segment_vectors, sample_vectors;     ///< the vectors of a segment, and of the channels of an offset group

  /// With `by_offset_group` the channels of an offset group are a segment, whatever their groups are.
  static Arranged of(const Geometry& g, bool by_offset_group = false) {
    const std::int64_t segment = by_offset_group ? g.co() : std::gcd(g.cg, g.co()), segments = g.c / segment;
    const std::int64_t vectors = (segment + kVector - 1) / kVector, padded = vectors * kVector, row = segments * padded;
    return {g,
            g.co(),
            g.ocg(),
            segment,
            segments,
            padded,
            row,
            row * g.taps(),
            row * g.taps() / g.groups,
            static_cast<int>(vectors),
            static_cast<int>(row / g.offset_groups / kVector)};
  }

  OPGATE_HOST_DEVICE std::int64_t size() const { return h * w; }
  OPGATE_HOST_DEVICE std::int64_t picture() const { return (size() + 1) * row; }

  /// Where a sample's vector is in a column.
  __device__ std::int64_t in_column(std::uint32_t offset_group, std::uint32_t tap, std::uint32_t vector) const {
    const std::uint32_t segment_of_group = vector / static_cast<std::uint32_t>(segment_vectors);
    const std::uint32_t in_segment = vector - segment_of_group * static_cast<std::uint32_t>(segment_vectors);
    const std::int64_t first = offset_group * (sample_vectors / segment_vectors);
    return ((first + segment_of_group) * taps() + tap) * padded + in_segment * kVector;
  }

  /// The most images whose output pixels are fewer than 2^31.
  std::int64_t most_images() const { return 0x7fffffff / std::max<std::int64_t>(1, pixels()); }

  /// So many threads, a power of two, share a sample.
  int lanes() const { return static_cast<int>(std::bit_floor(static_cast<unsigned>(std::min(kWarp, sample_vectors)))); }
};

/// What a tap samples: four pixels of the picture, how near they are, and the mask.
template <typename C>
struct Corners {
  std::int32_t pixel[4];  ///< the number of the picture's pixels if there is none
  std::int32_t none;
  std::int32_t x, y;  ///< the pixel above and to the left, which needn't exist
  C right, below, factor;

  /// `mask` may be null.
  template <typename T>
  static __device__ Corners of(const Geometry& g, const T* offset, const T* mask, std::int64_t image,
                               std::uint32_t group, std::uint32_t tap, std::uint32_t pixel) {
    const T* const own = offset + g.offset_at(image, group, tap) + pixel;
    const auto width = static_cast<std::uint32_t>(g.ow), taps = static_cast<std::uint32_t>(g.kw);
    const std::int64_t row = pixel / width, column = pixel % width, down = tap / taps, across = tap % taps;
    const C y = static_cast<C>(row * g.stride_h - g.pad_h + down * g.dilation_h) + static_cast<C>(own[0]);
    const C x = static_cast<C>(column * g.stride_w - g.pad_w + across * g.dilation_w) + static_cast<C>(own[g.pixels()]);
    const auto sample = Sample<C>::at(x, y, g.w, g.h);
    Corners corners{{},
                    static_cast<std::int32_t>(g.h * g.w),
                    static_cast<std::int32_t>(sample.x),
                    static_cast<std::int32_t>(sample.y),
                    sample.right,
                    sample.below,
                    C(1)};
    if (mask) {
      corners.factor = static_cast<C>(mask[((image * g.offset_groups + group) * g.taps() + tap) * g.pixels() + pixel]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t x_of = sample.x + i % 2, y_of = sample.y + i / 2;
      const bool exists = sample.inside && x_of >= 0 && y_of >= 0 && x_of < g.w && y_of < g.h;
      corners.pixel[i] = exists ? static_cast<std::int32_t>(y_of * g.w + x_of) : corners.none;
    }
    return corners;
  }

  /// Loads a vector of each pixel. `from` is that of the picture's first one, and a pixel has `row` numbers.
  template <typename T>
  __device__ void load(const T* from, std::int64_t row, int vector, products::Vector<T> (&numbers)[4]) const {
#pragma unroll
    for (int corner = 0; corner < 4; ++corner) {
      numbers[corner] = reinterpret_cast<const products::Vector<T>*>(from + pixel[corner] * row)[vector];
    }
  }

  __device__ bool exists(int corner) const { return pixel[corner] != none; }
  __device__ C near(int corner) const {
    return (corner / 2 ? below : C(1) - below) * (corner % 2 ? right : C(1) - right);
  }
  /// The factor of a pixel. 0 where there is none, also if the mask is no number.
  __device__ C weight(int corner) const { return exists(corner) ? near(corner) * factor : C(0); }
};

/// Where groups have few channels and filters, a thread computes so many numbers.
inline constexpr int kFew = 8;

/// Whether the tiles of a product would be nearly empty: in a depthwise convolution, for example.
inline bool few(const Geometry& g) { return g.cg * g.ocg() <= kFew * kFew; }

/// Puts filters and pictures in the order of Arranged. A thread writes a vector.
template <typename T>
struct Arrange {
  Arranged<T> g;
  std::int64_t images;
  const T *weight, *input;
  T *filters, *pictures;

  OPGATE_HOST_DEVICE std::int64_t filter_vectors() const { return weight ? g.oc * g.group_depth / g.kVector : 0; }
  OPGATE_HOST_DEVICE std::int64_t picture_vectors() const { return images * g.picture() / g.kVector; }
  OPGATE_HOST_DEVICE std::int64_t vectors() const { return filter_vectors() + picture_vectors(); }

  __device__ void write(std::int64_t i) const {
    if (i < filter_vectors())
      write_filter(i);
    else if (i < vectors())
      write_picture(i - filter_vectors());
  }

 private:
  __device__ void write_filter(std::int64_t i) const {
    const std::int64_t rest = quotient(i, g.segment_vectors), first = (i - rest * g.segment_vectors) * g.kVector;
    const std::int64_t segment = quotient(rest, g.taps()), tap = rest - segment * g.taps();  // of all filters
    const T* const from = weight + (segment * g.segment + first) * g.taps() + tap;
    put(filters, i, first, [&](int j) { return from[j * g.taps()]; });
  }

  /// Threads that are neighbours read pixels that are neighbours.
  __device__ void write_picture(std::int64_t i) const {
    const std::int64_t of_row = g.segments * g.segment_vectors;
    const std::int64_t rest = quotient(i, g.size() + 1), pixel = i - rest * (g.size() + 1);
    const std::int64_t image = quotient(rest, of_row), vector = rest - image * of_row;
    const std::int64_t segment = quotient(vector, g.segment_vectors),
                       first = (vector - segment * g.segment_vectors) * g.kVector;
    const T* const from = input + (image * g.c + segment * g.segment + first) * g.size() + pixel;
    put(pictures, (image * (g.size() + 1) + pixel) * of_row + vector, first,
        [&](int j) { return pixel < g.size() ? from[j * g.size()] : T{}; });
  }

  /// to[i] = a vector with channels of a segment from `first` on.
  template <typename Value>
  __device__ void put(T* to, std::int64_t i, std::int64_t first, const Value& value) const {
    products::Vector<T> vector;
#pragma unroll
    for (int j = 0; j < g.kVector; ++j) vector.values[j] = first + j < g.segment ? value(j) : T{};
    reinterpret_cast<products::Vector<T>*>(to)[i] = vector;
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads) arrange(Arrange<T> all) {
  all.write(thread_index());
}

}  // namespace opgate::ops::deform_conv2d

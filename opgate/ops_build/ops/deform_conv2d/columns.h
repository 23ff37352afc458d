// The samples of the input on the CPU, as columns of a matrix.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "gemm.h"
#include "geometry.h"
#include "kernel_toolkit/elementwise.h"
#include "kernel_toolkit/rows.h"
#include "kernel_toolkit/sample.h"

namespace opgate::ops::deform_conv2d {
namespace {

/// At most so many pixels are computed together: their columns stay in the second cache.
constexpr std::int64_t kPixels = 192;

/// Blocks of pixels of the same size, a multiple of kRows. Many filters are read for many pixels at once.
struct PixelBlocks {
  std::int64_t size, count;

  PixelBlocks(std::int64_t pixels, std::int64_t filter_bytes) {
    constexpr std::int64_t kManyBytes = 1 << 20;
    const std::int64_t most = filter_bytes > kManyBytes ? kPixels : kPixels / 2;
    const std::int64_t rows = (pixels + kRows - 1) / kRows;
    count = std::max<std::int64_t>(1, (rows * kRows + most - 1) / most);
    size = (rows + count - 1) / count * kRows;
    count = (pixels + size - 1) / size;
  }
};

/// Channels that lie side by side and have one group and one offset group.
struct Segment {
  std::int64_t group, offset_group, channel, count;

  static std::vector<Segment> all(const Geometry& g) {
    std::vector<Segment> segments;
    for (std::int64_t channel = 0; channel < g.c;) {
      const std::int64_t end = std::min((channel / g.cg + 1) * g.cg, (channel / g.co() + 1) * g.co());
      segments.push_back({channel / g.cg, channel / g.co(), channel, end - channel});
      channel = end;
    }
    return segments;
  }
};

/// What a tap samples: four pixels of the input, of which -1 doesn't exist, the place between them, and the mask.
template <typename C>
struct MaskedSample {
  std::int32_t pixel[4];
  C right, below, factor;
};

/// to[i, channel] = from[channel, i] for pixels i: channels side by side.
template <typename T, typename C>
void channels_last(Context& context, const T* from, std::int64_t images, std::int64_t channels, std::int64_t size,
                   C* to) {
  constexpr std::int64_t kBlock = 64;
  const std::int64_t blocks = (size + kBlock - 1) / kBlock;
  context.parallel_for(images * blocks, std::max<std::int64_t>(1, kElementGrain / (kBlock * channels)),
                       [=](std::int64_t begin, std::int64_t end) {
                         C wide[kBlock];
                         for (std::int64_t i = begin; i < end; ++i) {
                           const std::int64_t image = i / blocks, first = i % blocks * kBlock;
                           const std::int64_t count = std::min(kBlock, size - first);
                           for (std::int64_t channel = 0; channel < channels; ++channel) {
                             const T* const row = from + (image * channels + channel) * size + first;
                             if constexpr (std::is_same_v<T, C>)
                               std::copy_n(row, count, wide);
                             else
                               widen(row, wide, count);
                             C* const column = to + (image * size + first) * channels + channel;
                             for (std::int64_t j = 0; j < count; ++j) column[j * channels] = wide[j];
                           }
                         }
                       });
}

/// Finds what the taps of `count` output pixels from `first` on sample: samples[(offset group * taps + tap) * stride +
/// i]. `mask` may be null.
template <typename C>
void find_samples(const Geometry& g, const C* offset, const C* mask, std::int64_t image, std::int64_t first,
                  std::int64_t count, std::int64_t stride, MaskedSample<C>* samples) {
  const C width = static_cast<C>(g.w), height = static_cast<C>(g.h);
  const std::int32_t columns = static_cast<std::int32_t>(g.w), rows = static_cast<std::int32_t>(g.h);
  for (std::int64_t t = 0; t < g.offset_groups * g.taps(); ++t) {
    const C* const to_y = offset + g.offset_at(image, t / g.taps(), t % g.taps()) + first;
    const C* const to_x = to_y + g.pixels();
    const C* const factors = mask ? mask + (image * g.offset_groups * g.taps() + t) * g.pixels() + first : nullptr;
    std::int64_t row = first / g.ow, column = first % g.ow;
    for (std::int64_t i = 0; i < count; ++i) {
      const C y = static_cast<C>(g.place_y(t % g.taps(), row)) + to_y[i];
      const C x = static_cast<C>(g.place_x(t % g.taps(), column)) + to_x[i];
      if (++column == g.ow) {
        column = 0;
        ++row;
      }
      // A NaN is not inside. No branches: where samples lie can't be predicted.
      const bool inside = (x > C(-1)) & (y > C(-1)) & (x < width) & (y < height);
      const C safe_x = inside ? x : C(0), safe_y = inside ? y : C(0), factor = factors ? factors[i] : C(1);
      const std::int32_t left = pixel_before(safe_x), top = pixel_before(safe_y);
      const C right = safe_x - static_cast<C>(left), below = safe_y - static_cast<C>(top);
      const bool has_left = inside & (left >= 0), has_right = inside & (left + 1 < columns);
      const bool has_top = top >= 0, has_below = top + 1 < rows;
      const std::int32_t pixel = top * columns + left;
      MaskedSample<C>& one = samples[t * stride + i];
      one.pixel[0] = has_left & has_top ? pixel : -1;
      one.pixel[1] = has_right & has_top ? pixel + 1 : -1;
      one.pixel[2] = has_left & has_below ? pixel + columns : -1;
      one.pixel[3] = has_right & has_below ? pixel + columns + 1 : -1;
      one.right = right;
      one.below = below;
      one.factor = factor;
    }
  }
}

/// The weight of a pixel, without the mask.
template <typename C>
C weight_of(const MaskedSample<C>& sample, int corner) {
  return (corner / 2 ? sample.below : C(1) - sample.below) * (corner % 2 ? sample.right : C(1) - sample.right);
}

/// to[0, count) = the interpolated input. `from` is the first of `count` channels of pixel 0, and a pixel has `c`.
template <typename C>
void sample_row(const MaskedSample<C>& sample, const C* from, std::int64_t c, std::int64_t count, C* __restrict__ to) {
  const std::int32_t* const pixel = sample.pixel;
  if ((pixel[0] | pixel[1] | pixel[2] | pixel[3]) >= 0) {
    const C *const p0 = from + pixel[0] * c, *const p1 = from + pixel[1] * c, *const p2 = from + pixel[2] * c,
                   *const p3 = from + pixel[3] * c;
    const C below = sample.below * sample.factor, above = (C(1) - sample.below) * sample.factor;
    const C right = sample.right, left = C(1) - right;
    const C w0 = above * left, w1 = above * right, w2 = below * left, w3 = below * right;
    for (std::int64_t i = 0; i < count; ++i) to[i] = (w0 * p0[i] + w1 * p1[i]) + (w2 * p2[i] + w3 * p3[i]);
    return;
  }
  std::fill_n(to, count, C(0));
  for (int corner = 0; corner < 4; ++corner) {
    if (pixel[corner] < 0) continue;
    const C* const p = from + pixel[corner] * c;
    const C weight = weight_of(sample, corner) * sample.factor;
    for (std::int64_t i = 0; i < count; ++i) to[i] += weight * p[i];
  }
}

}  // namespace
}  // namespace opgate::ops::deform_conv2d

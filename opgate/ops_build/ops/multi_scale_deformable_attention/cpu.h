// What the kernels of MultiScaleDeformableAttention and of its gradient have in common on the CPU.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernel_toolkit/elementwise.h"
#include "kernel_toolkit/rows.h"
#include "samples.h"

namespace opgate::ops::multi_scale_deformable_attention {
namespace {

/// Reads the levels and checks that their keys exist.
template <typename I>
Status levels_of(const Inputs& in, const Sizes& sizes, std::vector<Level>& levels) {
  const I *const shapes = in["spatial_shapes"].data<I>(), *const starts = in["level_start_index"].data<I>();
  for (std::int64_t i = 0; i < sizes.levels; ++i) {
    const std::int64_t height = shapes[2 * i], width = shapes[2 * i + 1], start = starts[i];
    for (std::int64_t k = 2 * i; k < 2 * i + 2; ++k) {
      if (shapes[k] < 0)
        return Status::invalid("input 'spatial_shapes': element " + std::to_string(k) + " is " +
                               std::to_string(shapes[k]) + ", expected at least 0");
    }
    if (!Level::fits(height, width, start, sizes.keys))
      return Status::invalid("input 'level_start_index': element " + std::to_string(i) + " is " +
                             std::to_string(start) + ", and the level has " + std::to_string(height) + " x " +
                             std::to_string(width) + " keys, expected them among the " + std::to_string(sizes.keys) +
                             " keys of 'value'");
    levels.push_back({height, width, start});
  }
  return {};
}

/// The samples of one head of a query: for each of them four keys and their weights.
template <typename C>
class Corners {
 public:
  Corners(const Sizes& sizes, const std::vector<Level>& levels)
      : count_(sizes.levels * sizes.points),
        numbers_(static_cast<std::size_t>(kArrays * count_)),
        keys_(static_cast<std::size_t>(7 * count_)) {
    for (std::int64_t i = 0; i < count_; ++i) {
      const Level& level = levels[static_cast<std::size_t>(i / sizes.points)];
      const bool empty = level.width == 0 || level.height == 0;
      numbers_[static_cast<std::size_t>(i)] = static_cast<C>(empty ? 0 : level.width);
      numbers_[static_cast<std::size_t>(count_ + i)] = static_cast<C>(empty ? 0 : level.height);
      last_column()[i] = static_cast<std::int32_t>(empty ? -1 : level.width - 1);
      last_row()[i] = static_cast<std::int32_t>(empty ? -1 : level.height - 1);
      start()[i] = static_cast<std::int32_t>(empty ? 0 : level.start);
    }
  }

  /// Finds the keys for the locations (x, y) of all samples.
  void find(const C* __restrict__ locations) {
    const C* const __restrict__ wide = width(), * const __restrict__ high = height();
    const std::int32_t* const __restrict__ columns = last_column(), * const __restrict__ rows = last_row(), * const __restrict__ starts = start();
    C* const __restrict__ to_right = numbers_.data() + 2 * count_, * const __restrict__ to_below = to_right + count_;
    std::int32_t* const __restrict__ k0 = keys_.data() + 3 * count_, * const __restrict__ k1 = k0 + count_, * const __restrict__ k2 = k1 + count_, * const __restrict__ k3 = k2 + count_;
    for (std::int64_t i = 0; i < count_; ++i) {
      const C x = locations[2 * i] * wide[i] - C(0.5), y = locations[2 * i + 1] * high[i] - C(0.5);
      // A NaN is not inside.
      const bool inside = (x > C(-1)) & (y > C(-1)) & (x < wide[i]) & (y < high[i]);
      const C safe_x = inside ? x : C(0), safe_y = inside ? y : C(0);
      const std::int32_t left = pixel_before(safe_x), top = pixel_before(safe_y);
      to_right[i] = safe_x - static_cast<C>(left);
      to_below[i] = safe_y - static_cast<C>(top);
      const std::int32_t key = starts[i] + top * (columns[i] + 1) + left;
      const bool has_left = inside & (left >= 0), has_right = inside & (left < columns[i]);
      const bool has_top = top >= 0, has_below = top < rows[i];
      k0[i] = has_left & has_top ? key : -1;
      k1[i] = has_right & has_top ? key + 1 : -1;
      k2[i] = has_left & has_below ? key + columns[i] + 1 : -1;
      k3[i] = has_right & has_below ? key + columns[i] + 2 : -1;
    }
  }

  /// Computes the weights of the keys: how near they are, times the sample's weight.
  void weigh(const C* __restrict__ attention) {
    C* const __restrict__ w0 = numbers_.data() + 4 * count_;
    const C* const __restrict__ to_right = right(), * const __restrict__ to_below = below();
    for (std::int64_t i = 0; i < count_; ++i) {
      const C r = to_right[i], l = C(1) - r;
      const C b = to_below[i] * attention[i], t = (C(1) - to_below[i]) * attention[i];
      w0[i] = t * l;
      w0[i + count_] = t * r;
      w0[i + 2 * count_] = b * l;
      w0[i + 3 * count_] = b * r;
    }
  }

  /// Asks for the first numbers of all keys. `stride` numbers lie between the values of two keys.
  void prefetch(const C* values, std::int64_t stride, std::int64_t dims) const {
    constexpr std::int64_t kLine = 64 / sizeof(C), kMost = 4 * kLine;
    for (const std::int32_t* key = keys_.data() + 3 * count_; key < keys_.data() + 7 * count_; ++key) {
      if (*key < 0) continue;
      const C* const from = values + *key * stride;
      for (std::int64_t d = 0; d < std::min(dims, kMost); d += kLine) __builtin_prefetch(from + d);
    }
  }

  std::int64_t count() const { return count_; }
  /// The key of sample i in corner 0 (above, left), 1 (above, right), 2 (below, left) or 3, or -1.
  std::int32_t key(std::int64_t i, int corner) const {
    return keys_[static_cast<std::size_t>((3 + corner) * count_ + i)];
  }
  C weight(std::int64_t i, int corner) const { return numbers_[static_cast<std::size_t>((4 + corner) * count_ + i)]; }
  const C* right() const { return numbers_.data() + 2 * count_; }
  const C* below() const { return numbers_.data() + 3 * count_; }
  const C* width() const { return numbers_.data(); }
  const C* height() const { return numbers_.data() + count_; }

 private:
  static constexpr std::int64_t kArrays = 8;

  std::int32_t* last_column() { return keys_.data(); }
  std::int32_t* last_row() { return keys_.data() + count_; }
  std::int32_t* start() { return keys_.data() + 2 * count_; }

  std::int64_t count_;
  std::vector<C> numbers_;
  std::vector<std::int32_t> keys_;
};

}  // namespace
}  // namespace opgate::ops::multi_scale_deformable_attention

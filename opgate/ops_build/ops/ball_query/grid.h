// The points of a segment in the cells of a grid that repeats, so that the points near a query are few ranges of rows.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "points/nearest.h"

namespace opgate::ops::ball_query {
namespace {

using knn_query::kLanes;
using knn_query::Lanes;
using knn_query::not_greater;

/// Points by columns: column `axis` begins at `at + axis * stride`. Behind the last row there is room for kLanes more.
template <typename T>
struct Columns {
  T* at;
  std::int64_t stride, d;
};

/// Bit i says whether row first + i of the points is in the ball around `query`. The caller leaves out rows that don't
/// exist. `last` is the greatest squared distance that counts. D is the number of coordinates, or 0 for any.
template <int D, typename T>
unsigned hits_of(const Columns<T>& points, std::int64_t first, const T* query, T least, T last, bool with_center) {
  Lanes<T> sum{};
  const std::int64_t d = D ? D : points.d;
  for (std::int64_t axis = 0; axis < d; ++axis) {
    Lanes<T> at;
    knn_query::load(points.at + axis * points.stride + first, at);
    const Lanes<T> difference = at - query[axis];
    sum += difference * difference;
  }
  T d2[kLanes], limit[kLanes];
  std::memcpy(d2, &sum, sizeof sum);
  std::fill_n(limit, kLanes, last);
  const unsigned below = not_greater(d2, limit);
  if (!below || least == 0) return below;
  std::fill_n(limit, kLanes, least);
  unsigned above = not_greater(limit, d2);
  if (with_center) {
    std::fill_n(limit, kLanes, T(0));
    above |= not_greater(d2, limit);
  }
  return below & above;
}

/// The first `count` lanes.
inline unsigned lanes(std::int64_t count) { return count < kLanes ? (1u << count) - 1 : 0xffffu; }

/// A set of rows that gives them in order. One bit of `upper_` stands for 64 rows.
class RowSet {
 public:
  explicit RowSet(std::int64_t rows)
      : bits_(static_cast<std::size_t>(rows / 64 + 1)), upper_(static_cast<std::size_t>(rows / 4096 + 1)) {}

  void add(std::uint32_t row) {
    bits_[row / 64] |= std::uint64_t{1} << row % 64;
    upper_[row / 4096] |= std::uint64_t{1} << row / 64 % 64;
  }

  /// Calls use(row) for the lowest `most` rows, in order, and empties the set.
  template <typename Use>
  void take(std::int64_t most, const Use& use) {
    for (std::size_t i = 0; i < upper_.size(); ++i) {
      for (std::uint64_t words = std::exchange(upper_[i], 0); words; words &= words - 1) {
        const std::size_t word = 64 * i + static_cast<std::size_t>(std::countr_zero(words));
        for (std::uint64_t rows = std::exchange(bits_[word], 0); rows && most > 0; rows &= rows - 1, --most) {
          use(static_cast<std::uint32_t>(64 * word + static_cast<std::size_t>(std::countr_zero(rows))));
        }
      }
    }
  }

 private:
  std::vector<std::uint64_t> bits_, upper_;
};

/// Cells are as wide as the ball's radius, so that a ball meets three cells along each axis. The first three
/// coordinates of a point choose its cell. Cells whose numbers are equal modulo a power of two share a bucket: so the
/// number of buckets doesn't depend on where the points are. The buckets of three neighbours differ.
template <typename T>
class Grid {
 public:
  struct Range {
    std::int64_t begin, end;
  };
  struct Ranges {
    Range ranges[18];
    int count = 0;
    std::int64_t points = 0;
  };

  static constexpr int kMostAxes = 3;

  /// The width of the cells for balls with squared distances below `below`, whose roundings it allows for. 0 if there
  /// is none.
  static double width_of(T below) {
    const double least = 0x1p-148;  // rounding a square to f32 changes it by less, where it isn't relatively small
    const double width = std::sqrt(static_cast<double>(below) + least) * (1 + 0x1p-20);
    return std::isfinite(1 / width) && std::isfinite(width) ? width : 0;
  }

  /// Sorts `n` points, given by columns, into `sorted`. `rows` gets their rows. Leaves out points that aren't finite.
  Grid(const Columns<T>& points, std::int64_t n, double width, Columns<T> sorted, std::span<std::uint32_t> rows)
      : axes_(static_cast<int>(std::min<std::int64_t>(points.d, kMostAxes))), scale_(1 / width) {
    choose_bits(points, n);
    const std::int64_t buckets = std::int64_t{1} << (bits_[0] + bits_[1] + bits_[2]);
    std::vector<std::uint32_t> keys(static_cast<std::size_t>(n));
    begins_.resize(static_cast<std::size_t>(buckets) + 2);
    for (std::int64_t i = 0; i < n; ++i) {
      T zero = 0;
      for (std::int64_t axis = 0; axis < points.d; ++axis) zero += points.at[axis * points.stride + i] * T(0);
      std::uint32_t bucket = static_cast<std::uint32_t>(buckets);  // behind all others
      if (zero == 0) {
        T at[kMostAxes];
        for (int axis = 0; axis < axes_; ++axis) at[axis] = points.at[axis * points.stride + i];
        bucket = 0;
        for (int axis = axes_ - 1; axis >= 0; --axis) bucket = bucket << bits_[axis] | wrapped(cell(at[axis]), axis);
      }
      keys[static_cast<std::size_t>(i)] = bucket;
      ++begins_[bucket + 1];
    }
    for (std::size_t i = 1; i < begins_.size(); ++i) begins_[i] += begins_[i - 1];
    // Each begin moves on to the next bucket's while its points are placed; then all are moved back.
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t to = begins_[keys[static_cast<std::size_t>(i)]]++;
      rows[to] = static_cast<std::uint32_t>(i);
      for (std::int64_t axis = 0; axis < points.d; ++axis) {
        sorted.at[axis * sorted.stride + to] = points.at[axis * points.stride + i];
      }
    }
    std::copy_backward(begins_.begin(), begins_.end() - 1, begins_.end());
    begins_[0] = 0;
  }

  /// The ranges of sorted points that a ball around `query` may have. They don't overlap.
  Ranges ranges_of(const T* query) const {
    Ranges found;
    int at[kMostAxes] = {};
    for (int axis = 0; axis < axes_; ++axis) at[axis] = cell(query[axis]);
    const std::uint32_t first = wrapped(at[0] - 1, 0), last = wrapped(at[0] + 1, 0);
    const int around_y = axes_ > 1, around_z = axes_ > 2;
    for (int z = -around_z; z <= around_z; ++z) {
      for (int y = -around_y; y <= around_y; ++y) {
        const std::uint32_t row = (wrapped(at[2] + z, 2) << bits_[1] | wrapped(at[1] + y, 1)) << bits_[0];
        if (first < last) {
          add(row + first, row + last, found);
        } else {
          add(row + first, row + wrapped(-1, 0), found);
          add(row, row + last, found);
        }
      }
    }
    return found;
  }

 private:
  static constexpr int kFarthest = 1 << 30;

  /// The number of the cell that has the coordinate. It grows with the coordinate.
  int cell(T at) const {
    return static_cast<int>(std::clamp<double>(std::floor(static_cast<double>(at) * scale_), -kFarthest, kFarthest));
  }

  std::uint32_t wrapped(int cell, int axis) const {
    return static_cast<std::uint32_t>(cell) & ((std::uint32_t{1} << bits_[axis]) - 1);
  }

  /// Adds the points of the buckets first..last.
  void add(std::uint32_t first, std::uint32_t last, Ranges& to) const {
    const Range range{begins_[first], begins_[last + 1]};
    if (range.begin == range.end) return;
    to.ranges[to.count++] = range;
    to.points += range.end - range.begin;
  }

  /// Chooses about twice as many buckets as points, for each axis as many as most points need.
  void choose_bits(const Columns<T>& points, std::int64_t n) {
    constexpr std::int64_t kSamples = 64;
    const int all = std::min(static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n))) + 1, 22);
    int sum = 0;
    for (int axis = 0; axis < axes_; ++axis) {
      std::vector<double> samples;
      for (std::int64_t i = 0; i < kSamples; ++i) {
        const double at = static_cast<double>(points.at[axis * points.stride + i * n / kSamples]);
        if (std::isfinite(at)) samples.push_back(at);
      }
      std::sort(samples.begin(), samples.end());
      const double extent = samples.empty() ? 0 : samples[samples.size() * 15 / 16] - samples[samples.size() / 16];
      const double cells = std::clamp(extent * scale_ * 1.2 + 3, 4.0, 0x1p20);
      bits_[axis] = std::ilogb(cells - 1) + 1;
      sum += bits_[axis];
    }
    for (; sum > all; --sum) {
      int* const most = std::max_element(bits_, bits_ + axes_);
      if (*most <= 2) break;
      --*most;
    }
  }

  int axes_;
  double scale_;
  int bits_[kMostAxes] = {};
  std::vector<std::uint32_t> begins_;  ///< the first point of each bucket
};

}  // namespace
}  // namespace opgate::ops::ball_query

// The points of a segment in buckets. Each bucket knows the box around its points and which of them is the farthest
// from the samples, so that a sample only concerns the buckets near it.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "points/nearest.h"

namespace opgate::ops::farthest_point_sample {
namespace {

using knn_query::kLanes;
using knn_query::Lanes;
using knn_query::not_greater;

/// kLanes points of a bucket come together: their first coordinates, their second ones, and so on. D is the number of
/// coordinates, or 0 for any.
template <int D, typename T>
class Buckets {
 public:
  /// `rows` are the rows of xyz in an order in which neighbours are near one another.
  Buckets(const T* xyz, std::int64_t d, std::span<const std::uint32_t> rows)
      : d_(D ? D : d),
        blocks_((rows.size() + kLanes - 1) / kLanes),
        blocks_of_bucket_(std::clamp<std::size_t>(static_cast<std::size_t>(std::sqrt(rows.size())) / 32, 1, 64)),
        buckets_((blocks_ + blocks_of_bucket_ - 1) / blocks_of_bucket_),
        stride_((buckets_ + kLanes - 1) / kLanes * kLanes),
        at_(blocks_ * axes() * kLanes),
        closest_(blocks_ * kLanes, T(-1)),
        rows_(blocks_ * kLanes, kNone),
        low_(stride_ * axes()),
        high_(stride_ * axes()),
        farthest_(stride_, T(-1)),
        farthest_row_(stride_, kNone) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const T* const point = xyz + static_cast<std::int64_t>(rows[i]) * d;
      const std::size_t bucket = i / kLanes / blocks_of_bucket_;
      const bool is_first = i % (kLanes * blocks_of_bucket_) == 0;
      for (std::size_t axis = 0; axis < axes(); ++axis) {
        T &low = low_[axis * stride_ + bucket], &high = high_[axis * stride_ + bucket];
        const T value = point[axis];
        at_[(i / kLanes * axes() + axis) * kLanes + i % kLanes] = value;
        low = is_first ? value : std::min(low, value);
        high = is_first ? value : std::max(high, value);
      }
      closest_[i] = std::numeric_limits<T>::infinity();
      rows_[i] = rows[i];
    }
    for (std::size_t bucket = 0; bucket < buckets_; ++bucket) find_farthest(bucket);
  }

  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  /// The row that is the farthest from the samples, the lowest of several; kNone if all rows are samples.
  std::uint32_t farthest() {
    Lanes<T> most = T(-1) - Lanes<T>{};
    for (std::size_t i = 0; i < stride_; i += kLanes) {
      Lanes<T> values;
      knn_query::load(&farthest_[i], values);
      most = values > most ? values : most;
    }
    T limit[kLanes];
    std::fill_n(limit, kLanes, greatest(most));
    std::uint32_t row = kNone;
    if (limit[0] < 0) return row;
    for (std::size_t i = 0; i < stride_; i += kLanes) {
      for (unsigned equal = not_greater(limit, &farthest_[i]); equal; equal &= equal - 1) {
        const std::size_t bucket = i + static_cast<std::size_t>(std::countr_zero(equal));
        if (farthest_row_[bucket] > row) continue;
        row = farthest_row_[bucket];
        bucket_ = bucket;
      }
    }
    return row;
  }

  /// Makes a row a sample: the one that farthest() has just returned.
  void take(std::uint32_t row) {
    for (std::size_t i = begin_of(bucket_) * kLanes;; ++i) {
      if (rows_[i] != row) continue;
      closest_[i] = -1;
      break;
    }
    farthest_[bucket_] = std::numeric_limits<T>::infinity();  // so that the bucket is looked at
  }

  /// Makes a row a sample before farthest() was called.
  void take_first(std::uint32_t row) {
    const auto place = std::find(rows_.begin(), rows_.end(), row) - rows_.begin();
    bucket_ = static_cast<std::size_t>(place) / kLanes / blocks_of_bucket_;
    take(row);
  }

  /// Looks at the buckets that a sample may concern: those where the box is nearer than the farthest point. Distances
  /// to a box are computed like those to points, and rounding keeps the order of numbers.
  void approach(const T* sample) {
    for (std::size_t first = 0; first < stride_; first += kLanes) {
      Lanes<T> sum{};
      for (std::size_t axis = 0; axis < axes(); ++axis) {
        Lanes<T> low, high;
        knn_query::load(&low_[axis * stride_ + first], low);
        knn_query::load(&high_[axis * stride_ + first], high);
        const Lanes<T> below = low - sample[axis], above = sample[axis] - high;
        const Lanes<T> outside = below > above ? below : above;
        const Lanes<T> gap = outside > Lanes<T>{} ? outside : Lanes<T>{};
        sum += gap * gap;
      }
      T bound[kLanes];
      std::memcpy(bound, &sum, sizeof sum);
      for (unsigned near = ~not_greater(&farthest_[first], bound) & 0xffffu; near; near &= near - 1) {
        const std::size_t bucket = first + static_cast<std::size_t>(std::countr_zero(near));
        approach_bucket(bucket, sample);
        find_farthest(bucket);
      }
    }
  }

 private:
  std::size_t axes() const { return D ? D : static_cast<std::size_t>(d_); }
  std::size_t begin_of(std::size_t bucket) const { return bucket * blocks_of_bucket_; }
  std::size_t end_of(std::size_t bucket) const { return std::min(begin_of(bucket + 1), blocks_); }

  static T greatest(const Lanes<T>& lanes) {
    T values[kLanes];
    std::memcpy(values, &lanes, sizeof lanes);
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) values[i] = values[i] > values[i + half] ? values[i] : values[i + half];
    }
    return values[0];
  }

  void approach_bucket(std::size_t bucket, const T* sample) {
    for (std::size_t block = begin_of(bucket); block < end_of(bucket); ++block) {
      Lanes<T> sum{}, closest;
      for (std::size_t axis = 0; axis < axes(); ++axis) {
        Lanes<T> at;
        knn_query::load(&at_[(block * axes() + axis) * kLanes], at);
        const Lanes<T> difference = at - sample[axis];
        sum += difference * difference;
      }
      knn_query::load(&closest_[block * kLanes], closest);
      closest = sum < closest ? sum : closest;
      std::memcpy(&closest_[block * kLanes], &closest, sizeof closest);
    }
  }

  void find_farthest(std::size_t bucket) {
    Lanes<T> most = T(-1) - Lanes<T>{};
    for (std::size_t block = begin_of(bucket); block < end_of(bucket); ++block) {
      Lanes<T> closest;
      knn_query::load(&closest_[block * kLanes], closest);
      most = closest > most ? closest : most;
    }
    T limit[kLanes];
    std::fill_n(limit, kLanes, greatest(most));
    std::uint32_t row = kNone;
    if (limit[0] >= 0) {
      for (std::size_t block = begin_of(bucket); block < end_of(bucket); ++block) {
        for (unsigned equal = not_greater(limit, &closest_[block * kLanes]); equal; equal &= equal - 1) {
          row = std::min(row, rows_[block * kLanes + static_cast<std::size_t>(std::countr_zero(equal))]);
        }
      }
    }
    farthest_[bucket] = limit[0];
    farthest_row_[bucket] = row;
  }

  std::int64_t d_;
  std::size_t blocks_, blocks_of_bucket_, buckets_;
  std::size_t stride_;  ///< the buckets, and some that have no points
  std::vector<T> at_;
  std::vector<T> closest_;  ///< the squared distance to the nearest sample; -1: is a sample, or no point
  std::vector<std::uint32_t> rows_;
  std::vector<T> low_, high_;  ///< the boxes, an axis after the other
  std::vector<T> farthest_;    ///< the greatest of `closest_`
  std::vector<std::uint32_t> farthest_row_;
  std::size_t bucket_ = 0;  ///< of the last row that farthest() found
};

}  // namespace
}  // namespace opgate::ops::farthest_point_sample

// The best classes of a row, and the sum of its softmax, on the CPU.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <span>
#include <vector>

#include "detection/greater.h"
#include "detection/nms.h"
#include "kernel_toolkit/elementary.h"

namespace opgate::detection {

constexpr std::int64_t kLanes = 32;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The greatest logit, without NaN. -infinity if there is none.
inline float greatest(const float* values, std::int64_t count) {
  std::array<float, kLanes> most;
  most.fill(-kInfinity);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane)
      most[lane] = select(values[i + lane] > most[lane], values[i + lane], most[lane]);
  }
  for (std::int64_t lane = 0; i < count; ++i, ++lane)
    most[lane] = select(values[i] > most[lane], values[i], most[lane]);
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t lane = 0; lane < half; ++lane)
      most[lane] = select(most[lane + half] > most[lane], most[lane + half], most[lane]);
  }
  return most[0];
}

/// exp(x), and 0 where it is less than 1e-37. NaN stays NaN.
inline float exp_or_zero(float x) {
  return select(x < kExpLow<float>, 0.0f, exp_in_range(held(x, kExpLow<float>, kExpHigh<float>)));
}

/// The sum of exp(value - shift).
inline float exponentials(const float* values, std::int64_t count, float shift) {
  std::array<float, kLanes> sums{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += exp_or_zero(values[i + lane] - shift);
  }
  for (std::int64_t lane = 0; i < count; ++i, ++lane) sums[lane] += exp_or_zero(values[i] - shift);
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

/// The score of a candidate.
inline float score_of(Candidate candidate) {
  const std::uint32_t key = ~static_cast<std::uint32_t>(candidate >> 32);
  const std::uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
  return std::bit_cast<float>(bits);
}

/// The best `k` of the classes that were seen so far. NaN is none of them.
class Best {
 public:
  explicit Best(std::int64_t k) : k_(static_cast<std::size_t>(k)) { entries_.reserve(few() ? k_ : 2 * k_); }

  /// Sees the classes from `label` on. `most` is their greatest logit. A later class must be greater than the k-th best
  /// one, which nearly no block has, so nearly all blocks cost one comparison.
  void see(const float* values, std::int64_t count, float most, std::int64_t label) {
    std::int64_t i = 0;
    for (; i < count && !full_; ++i) {
      if (values[i] == values[i]) add(candidate(values[i], static_cast<std::uint32_t>(label + i)));
    }
    if (i == count || !(most > limit_)) return;
    for_each_greater(values + i, count - i, limit_, [&](std::int64_t at) {
      if (values[i + at] > limit_) add(candidate(values[i + at], static_cast<std::uint32_t>(label + i + at)));
    });
  }

  /// The best of them, at most k, the best first.
  std::span<const Candidate> sorted() {
    if (entries_.size() > k_) shrink();
    if (!few()) std::sort(entries_.begin(), entries_.end());
    return entries_;
  }

 private:
  /// So few entries are kept in their order. More are collected, and cut to k from time to time.
  bool few() const { return k_ <= 32; }

  void add(Candidate entry) {
    if (few()) {
      if (entries_.size() == k_) entries_.pop_back();
      entries_.insert(std::upper_bound(entries_.begin(), entries_.end(), entry), entry);
      if (entries_.size() == k_) limit_at(entries_.back());
    } else {
      entries_.push_back(entry);
      if (entries_.size() == (full_ ? 2 * k_ : k_)) shrink();
    }
  }

  void shrink() {
    const auto last = entries_.begin() + static_cast<std::ptrdiff_t>(k_ - 1);
    std::nth_element(entries_.begin(), last, entries_.end());
    limit_at(*last);
    entries_.resize(k_);
  }

  void limit_at(Candidate entry) {
    limit_ = score_of(entry);
    full_ = true;
  }

  std::size_t k_;
  std::vector<Candidate> entries_;
  float limit_ = -kInfinity;
  bool full_ = false;
};

}  // namespace opgate::detection

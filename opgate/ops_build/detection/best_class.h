// The best class of a step and its probability.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "detection/best.h"
#include "kernel_toolkit/convert.h"

namespace opgate::detection {

inline constexpr std::int64_t kBlock = 512;

/// The best class of a step: the first of the greatest numbers. A NaN is less than any number.
struct BestClass {
  float value = -kInfinity;
  std::int64_t label = 0;
};

/// Calls use(values, count, label of the first) for the blocks of a step in f32, until it returns false.
template <typename T, typename Use>
void for_each_block(const T* step, std::int64_t c, Use use) {
  [[maybe_unused]] float wide[kBlock];
  for (std::int64_t at = 0; at < c; at += kBlock) {
    const std::int64_t count = std::min(kBlock, c - at);
    if constexpr (std::is_same_v<T, float>) {
      if (!use(step + at, count, at)) return;
    } else {
      widen(step + at, wide, count);
      if (!use(wide, count, at)) return;
    }
  }
}

template <typename T>
BestClass best_of(const T* step, std::int64_t c) {
  BestClass best;
  std::int64_t block = 0;
  for_each_block(step, c, [&](const float* values, std::int64_t count, std::int64_t at) {
    if (const float most = greatest(values, count); most > best.value) {
      best.value = most;
      block = at;
    }
    return true;
  });
  while (block < c && !(static_cast<float>(step[block]) == best.value)) ++block;
  best.label = block < c ? block : 0;  // a step of NaN has no number
  return best;
}

/// The softmax of the greatest number of a step.
template <typename T>
double softmax_of_best(const T* step, std::int64_t c, float most) {
  if (std::isinf(most)) return std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  for_each_block(step, c, [&](const float* values, std::int64_t count, std::int64_t) {
    sum += exponentials(values, count, most);
    return true;
  });
  return 1 / sum;
}

}  // namespace opgate::detection

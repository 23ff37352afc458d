// Sums of rows with weights on the CPU, with loops that vectorize.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "core/elementwise.h"
#include "core/inputs.h"

namespace opgate::ops::three_interpolate {
namespace {

/// Checks that each neighbour is a row of `features`, or negative.
inline Status check_rows(const Tensor& idx, std::int64_t n) {
  const std::span<const std::int32_t> rows = idx.span<std::int32_t>();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] >= n) {
      return Status::invalid("input 'idx': element " + std::to_string(i) + " is " + std::to_string(rows[i]) +
                             ", expected a row of 'features', below " + std::to_string(n));
    }
  }
  return {};
}

/// A row and its weight.
template <typename T>
struct Weighted {
  const T* row;
  ComputeType<T> weight;
};

/// y[i] = the sum over `count` rows of weight * row[i], for i in [0, c). term(j) returns a Weighted<T>. A partial sum
/// adds few rows before it is added to a double, so the error doesn't grow with the number of rows.
template <typename T, typename Term>
void sum_rows(std::int64_t count, std::int64_t c, const Term& term, T* y) {
  using C = ComputeType<T>;
  constexpr std::int64_t kBlock = elementwise::kBlock, kRowsTogether = 64;
  alignas(64) C part[kBlock], wide[3][kBlock];
  alignas(64) double total[kBlock];
  for (std::int64_t first = 0; first < c; first += kBlock) {
    const std::int64_t width = std::min(kBlock, c - first);
    const auto load = [&](const Weighted<T>& from, C* buffer) {
      if constexpr (std::is_same_v<C, T>) {
        return from.row + first;
      } else {
        widen(from.row + first, buffer, width);
        return static_cast<const C*>(buffer);
      }
    };
    const bool long_sum = count > kRowsTogether;
    if (long_sum) std::fill_n(total, width, 0.0);
    std::int64_t j = 0;
    do {
      const std::int64_t end = std::min(count, j + kRowsTogether);
      if (end - j >= 3) {
        const Weighted<T> a = term(j), b = term(j + 1), d = term(j + 2);
        const C *const first_row = load(a, wide[0]), *const second = load(b, wide[1]), *const third = load(d, wide[2]);
        for (std::int64_t i = 0; i < width; ++i)
          part[i] = a.weight * first_row[i] + b.weight * second[i] + d.weight * third[i];
        j += 3;
      } else {
        std::fill_n(part, width, C(0));
      }
      for (; j < end; ++j) {
        const Weighted<T> next = term(j);
        const C* const row = load(next, wide[0]);
        for (std::int64_t i = 0; i < width; ++i) part[i] += next.weight * row[i];
      }
      if (long_sum) {
        for (std::int64_t i = 0; i < width; ++i) total[i] += static_cast<double>(part[i]);
      }
    } while (j < count);
    if (long_sum) {
      for (std::int64_t i = 0; i < width; ++i) part[i] = static_cast<C>(total[i]);
    }
    if constexpr (std::is_same_v<C, T>) {
      std::copy_n(part, width, y + first);
    } else {
      narrow(part, y + first, width);
    }
  }
}

}  // namespace
}  // namespace opgate::ops::three_interpolate

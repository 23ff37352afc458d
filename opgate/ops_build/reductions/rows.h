// Reduces rows on the CPU, with loops that vectorize.
#pragma once

#include <algorithm>
#include <limits>

#include "formula.h"
#include "kernel_toolkit/elementwise.h"

namespace opgate::ops::segment_reduce {
namespace {

/// The most numbers that are reduced side by side. They stay in the first cache.
constexpr std::int64_t kWidth = 512;

/// So few numbers are reduced one after the other.
constexpr std::int64_t kFewColumns = 16, kFewNumbers = 128;

/// Reduces `rows` rows of `columns` <= kWidth numbers to `y`. `row(i)` points to row i. If `together` > 1, that many
/// rows are contiguous and are reduced side by side. Without rows y is 0.
template <typename Op, typename T, typename Row>
void reduce_rows(std::int64_t rows, std::int64_t columns, std::int64_t together, bool mean, const Row& row, T* y) {
  using C = ComputeType<T>;
  using A = Total<T, Op>;
  if (rows == 0) {
    std::fill_n(y, columns, static_cast<T>(C(0)));
    return;
  }
  if (columns < kFewColumns && rows * columns <= kFewNumbers) {
    for (std::int64_t k = 0; k < columns; ++k) {
      // Two chains of operations, which don't wait for one another.
      A total = static_cast<A>(Op::kStart), other = total;
      unsigned nan = 0;
      const auto value = [&](std::int64_t i) {
        const C number = static_cast<C>(row(i)[k]);
        nan |= static_cast<unsigned>(number != number);
        return static_cast<A>(number);
      };
      std::int64_t i = 0;
      for (; i + 2 <= rows; i += 2) {
        total = Op::combine_number(total, value(i));
        other = Op::combine_number(other, value(i + 1));
      }
      if (i < rows) total = Op::combine_number(total, value(i));
      total = Op::combine_number(total, other);
      if (Op::kNanWins && nan) total = std::numeric_limits<A>::quiet_NaN();
      y[k] = static_cast<T>(static_cast<C>(mean ? total / static_cast<A>(rows) : total));
    }
    return;
  }
  const std::int64_t width = columns * together;
  alignas(64) C part[kWidth];
  [[maybe_unused]] alignas(64) C wide[kWidth];
  alignas(64) A total[kWidth];
  std::fill_n(total, width, static_cast<A>(Op::kStart));
  for (std::int64_t first = 0; first < rows;) {
    std::fill_n(part, width, static_cast<C>(Op::kStart));
    for (int step = 0; step < kRowsTogether && first < rows; ++step, first += together) {
      const std::int64_t count = std::min(together, rows - first) * columns;
      const T* const from = row(first);
      if constexpr (std::is_same_v<C, T>) {
        for (std::int64_t i = 0; i < count; ++i) part[i] = Op::combine(part[i], from[i]);
      } else {
        widen(from, wide, count);
        for (std::int64_t i = 0; i < count; ++i) part[i] = Op::combine(part[i], wide[i]);
      }
    }
    for (std::int64_t i = 0; i < width; ++i) total[i] = Op::combine(total[i], static_cast<A>(part[i]));
  }
  for (std::int64_t i = columns; i < width; ++i) total[i % columns] = Op::combine(total[i % columns], total[i]);
  if (mean) {
    for (std::int64_t i = 0; i < columns; ++i) total[i] /= static_cast<A>(rows);
  }
  if constexpr (std::is_same_v<C, T>) {
    for (std::int64_t i = 0; i < columns; ++i) y[i] = static_cast<T>(total[i]);
  } else {
    for (std::int64_t i = 0; i < columns; ++i) wide[i] = static_cast<C>(total[i]);
    narrow(wide, y, columns);
  }
}

}  // namespace
}  // namespace opgate::ops::segment_reduce

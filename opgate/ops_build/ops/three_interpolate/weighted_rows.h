// Sums of rows with weights on the CPU, with loops that vectorize.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <type_traits>

#include "kernel_toolkit/elementwise.h"
#include "kernel_toolkit/rows.h"
#include "op_call/inputs.h"

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

/// The number of rows that are added as numbers of ComputeType<T>.
constexpr std::int64_t kRowsTogether = 64;

/// sums[i] = the sum over `rows` of weight * row[first + i], for i in [0, width). The sums of some columns stay in
/// registers until all rows are added.
template <typename T>
void add_rows(std::span<const Weighted<T>> rows, std::int64_t first, std::int64_t width, ComputeType<T>* sums) {
  using C = ComputeType<T>;
  if constexpr (std::is_same_v<C, T>) {
    using V = rows::Vectors<C>;
    std::int64_t i = 0;
    const auto columns = [&]<std::size_t vectors>(std::integral_constant<std::size_t, vectors>) {
      constexpr auto kStep = static_cast<std::int64_t>(vectors) * V::kWidth;
      for (; i + kStep <= width; i += kStep) {
        typename V::Vector lanes[vectors] = {};
        for (const Weighted<T>& from : rows) {
#pragma GCC unroll 8
          for (std::size_t v = 0; v < vectors; ++v)
            lanes[v] += from.weight * V::load(from.row + first + i + static_cast<std::int64_t>(v) * V::kWidth);
        }
#pragma GCC unroll 8
        for (std::size_t v = 0; v < vectors; ++v)
          V::store(lanes[v], sums + i + static_cast<std::int64_t>(v) * V::kWidth);
      }
    };
    columns(std::integral_constant<std::size_t, 8>());
    columns(std::integral_constant<std::size_t, 1>());
    for (; i < width; ++i) {
      C lane = 0;
      for (const Weighted<T>& from : rows) lane += from.weight * from.row[first + i];
      sums[i] = lane;
    }
  } else {
    alignas(64) C wide[elementwise::kBlock];
    std::fill_n(sums, width, C(0));
    for (const Weighted<T>& from : rows) {
      widen(from.row + first, wide, width);
      for (std::int64_t i = 0; i < width; ++i) sums[i] += from.weight * wide[i];
    }
  }
}

/// y[i] = the sum over `count` rows of weight * row[i], for i in [0, c). term(j) returns a Weighted<T>. A partial sum
/// adds few rows before it is added to a double, so the error doesn't grow with the number of rows.
template <typename T, typename Term>
void sum_rows(std::int64_t count, std::int64_t c, const Term& term, T* y) {
  using C = ComputeType<T>;
  constexpr std::int64_t kBlock = elementwise::kBlock;
  Weighted<T> terms[kRowsTogether];
  const auto some = [&](std::int64_t begin) {
    const std::int64_t few = std::min(count - begin, kRowsTogether);
    for (std::int64_t j = 0; j < few; ++j) terms[j] = term(begin + j);
    return std::span<const Weighted<T>>(terms, static_cast<std::size_t>(few));
  };
  if (count <= kRowsTogether) {
    const std::span<const Weighted<T>> all = some(0);
    if constexpr (std::is_same_v<C, T>) {
      add_rows<T>(all, 0, c, y);
    } else {
      alignas(64) C part[kBlock];
      for (std::int64_t first = 0; first < c; first += kBlock) {
        const std::int64_t width = std::min(kBlock, c - first);
        add_rows<T>(all, first, width, part);
        narrow(part, y + first, width);
      }
    }
    return;
  }
  alignas(64) C part[kBlock];
  alignas(64) double total[kBlock];
  for (std::int64_t first = 0; first < c; first += kBlock) {
    const std::int64_t width = std::min(kBlock, c - first);
    std::fill_n(total, width, 0.0);
    for (std::int64_t begin = 0; begin < count; begin += kRowsTogether) {
      add_rows<T>(some(begin), first, width, part);
      for (std::int64_t i = 0; i < width; ++i) total[i] += static_cast<double>(part[i]);
    }
    for (std::int64_t i = 0; i < width; ++i) part[i] = static_cast<C>(total[i]);
    if constexpr (std::is_same_v<C, T>) {
      std::copy_n(part, width, y + first);
    } else {
      narrow(part, y + first, width);
    }
  }
}

}  // namespace
}  // namespace opgate::ops::three_interpolate

// Weighted sums of rows on the CPU, and the points that belong to each of them.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernel_toolkit/elementwise.h"
#include "kernel_toolkit/rows.h"
#include "points.h"

namespace opgate::ops::bev_pool_v2 {
namespace {

inline Status wrong(const char* input, std::int64_t at, std::int64_t value, const std::string& expected) {
  return Status::invalid("input '" + std::string(input) + "': element " + std::to_string(at) + " is " +
                         std::to_string(value) + ", expected " + expected);
}

inline Status check_ranks(const char* input, const std::int32_t* ranks, std::int64_t count, std::int64_t end,
                          const std::int32_t* cells) {
  std::uint32_t most = 0;  // a negative rank is a large number
  for (std::int64_t i = 0; i < count; ++i) most = std::max(most, static_cast<std::uint32_t>(ranks[i]));
  if (count == 0 || most < end) return {};
  for (std::int64_t i = 0; i < count; ++i) {
    if (cells[i] >= 0 && (ranks[i] < 0 || ranks[i] >= end))
      return wrong(input, i, ranks[i], end > 0 ? "0.." + std::to_string(end - 1) : "no points, because there are none");
  }
  return {};
}

/// Finds the cell of each point, -1 where it is in no interval, and checks the ranks of the points that have one.
inline Status find_cells(Context& context, const Inputs& in, const Points& points, const std::int32_t*& cells) {
  OPGATE_RETURN_IF_ERROR(check_intervals(in));
  cells = points.bev;
  if (in.has("interval_starts")) {
    const std::span<const std::int32_t> starts = in["interval_starts"].span<std::int32_t>();
    const std::int32_t* const lengths = in["interval_lengths"].data<std::int32_t>();
    std::int32_t* const found = context.scratch<std::int32_t>(points.count).data();
    std::int64_t done = 0;
    for (std::size_t k = 0; k < starts.size(); ++k) {
      const std::int64_t start = starts[k], at = static_cast<std::int64_t>(k);
      if (start < done || start > points.count)
        return wrong("interval_starts", at, start, std::to_string(done) + ".." + std::to_string(points.count));
      if (lengths[k] < 0 || lengths[k] > points.count - start)
        return wrong("interval_lengths", at, lengths[k], "0.." + std::to_string(points.count - start));
      std::fill(found + done, found + start, -1);
      done = start + lengths[k];
      if (done == start) continue;
      const std::int32_t cell = points.bev[start];
      if (cell < 0 || cell >= points.cells)
        return wrong("ranks_bev", start, cell, "0.." + std::to_string(points.cells - 1));
      std::fill(found + start, found + done, cell);
    }
    std::fill(found + done, found + points.count, -1);
    cells = found;
  } else {
    std::uint32_t most = 0;
    for (std::int64_t i = 0; i < points.count; ++i) most = std::max(most, static_cast<std::uint32_t>(cells[i]));
    for (std::int64_t i = 0; points.count > 0 && most >= points.cells && i < points.count; ++i) {
      if (cells[i] < 0 || cells[i] >= points.cells)
        return wrong("ranks_bev", i, cells[i], "0.." + std::to_string(points.cells - 1));
    }
  }
  OPGATE_RETURN_IF_ERROR(check_ranks("ranks_depth", points.depth, points.count, points.depths, cells));
  return check_ranks("ranks_feat", points.feat, points.count, points.feats, cells);
}

/// What is added to each row of an output: row k is the sum over i in [ends[k - 1], ends[k]) of the number weights[i]
/// times the row rows[i].
struct Terms {
  const std::uint32_t* begins;  // of each row, and behind them the end of the last one
  const std::int32_t *weights, *rows;

  /// Sorts the points by their key, which is in [0, keys). A point without a cell is left out.
  static Terms of(Context& context, std::int64_t points, std::int64_t keys, const std::int32_t* key,
                  const std::int32_t* cells, const std::int32_t* weights, const std::int32_t* rows) {
    std::uint32_t* const begins = context.scratch<std::uint32_t>(keys + 2).data();
    std::fill_n(begins, keys + 2, 0u);
    std::uint32_t* const next = begins + 1;
    std::uint32_t unsorted = 0;
    for (std::int64_t i = 0; i < points; ++i) {
      unsorted |= static_cast<std::uint32_t>((cells[i] < 0) | (i > 0 && key[i] < key[i - 1]));
      if (cells[i] >= 0) ++next[key[i] + 1];
    }
    for (std::int64_t k = 0; k < keys; ++k) next[k + 1] += next[k];
    // Now next[k] is where row k begins.
    if (!unsorted) return {next, weights, rows};
    std::int32_t* const sorted_weights = context.scratch<std::int32_t>(points).data();
    std::int32_t* const sorted_rows = context.scratch<std::int32_t>(points).data();
    for (std::int64_t i = 0; i < points; ++i) {
      if (cells[i] < 0) continue;
      const std::uint32_t to = next[key[i]]++;
      sorted_weights[to] = weights[i];
      sorted_rows[to] = rows[i];
    }
    // Now next[k] is where row k ends, and begins[k] where it begins.
    return {begins, sorted_weights, sorted_rows};
  }
};

/// Computes `vectors` vectors of a row, from column 0 of `values` on, which has `c` columns.
template <int vectors, typename C>
[[gnu::always_inline]] inline void add_columns(const Terms& terms, std::int64_t first, std::int64_t last,
                                               const C* weights, const C* values, std::int64_t c, C* to) {
  using V = rows::Vectors<C>;
  typename V::Vector total[vectors] = {}, part[vectors] = {};
  int together = 0;
  for (std::int64_t i = first; i < last; ++i) {
    const C weight = weights[terms.weights[i]];
    const C* const row = values + terms.rows[i] * c;
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) part[v] += weight * V::load(row + v * V::kWidth);
    if (++together == kPointsTogether) {
      together = 0;
      for (int v = 0; v < vectors; ++v) {
        total[v] += part[v];
        part[v] = typename V::Vector{};
      }
    }
  }
  for (int v = 0; v < vectors; ++v) {
    total[v] += part[v];
    std::memcpy(to + v * V::kWidth, &total[v], sizeof(total[v]));
  }
}

/// to[0, c) = row `row` of the sums.
template <typename C>
void add_rows(const Terms& terms, std::int64_t row, const C* weights, const C* values, std::int64_t c, C* to) {
  constexpr std::int64_t kWidth = rows::Vectors<C>::kWidth;
  const std::int64_t first = terms.begins[row], last = terms.begins[row + 1];
  if (first == last) {
    std::fill_n(to, c, C(0));
    return;
  }
  std::int64_t k = 0;
  for (; k + 4 * kWidth <= c; k += 4 * kWidth) add_columns<4>(terms, first, last, weights, values + k, c, to + k);
  for (; k + kWidth <= c; k += kWidth) add_columns<1>(terms, first, last, weights, values + k, c, to + k);
  if (k == c) return;
  C total[kWidth] = {};
  for (std::int64_t i = first; i < last;) {
    C part[kWidth] = {};
    for (const std::int64_t end = std::min<std::int64_t>(last, i + kPointsTogether); i < end; ++i) {
      const C weight = weights[terms.weights[i]];
      const C* const from = values + terms.rows[i] * c + k;
      for (std::int64_t j = 0; j < c - k; ++j) part[j] += weight * from[j];
    }
    for (std::int64_t j = 0; j < c - k; ++j) total[j] += part[j];
  }
  std::copy_n(total, c - k, to + k);
}

/// The number of rows for a thread.
inline std::int64_t grain(std::int64_t points, std::int64_t rows, std::int64_t c) {
  return std::max<std::int64_t>(
      1, kElementGrain / std::max<std::int64_t>(1, c * (1 + points / std::max<std::int64_t>(1, rows))));
}

/// Computes all rows of the sums. `each(row, values)` is called with each of them.
template <typename T, typename Each>
void add_all(Context& context, const Terms& terms, std::int64_t points, std::int64_t rows,
             const ComputeType<T>* weights, const ComputeType<T>* values, std::int64_t c, T* to, const Each& each) {
  using C = ComputeType<T>;
  context.parallel_for(rows, grain(points, rows, c), [&](std::int64_t begin, std::int64_t end) {
    std::vector<C> buffer(static_cast<std::size_t>(std::is_same_v<C, T> ? 0 : c));
    for (std::int64_t row = begin; row < end; ++row) {
      if constexpr (std::is_same_v<C, T>) {
        add_rows(terms, row, weights, values, c, to + row * c);
      } else {
        add_rows(terms, row, weights, values, c, buffer.data());
        narrow(buffer.data(), to + row * c, c);
      }
      each(row);
    }
  });
}

}  // namespace
}  // namespace opgate::ops::bev_pool_v2

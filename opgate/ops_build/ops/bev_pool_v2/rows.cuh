// Weighted sums of rows on CUDA, and the points that belong to each of them.
#pragma once

#include "kernel_toolkit/sorted.cuh"
#include "points.h"

namespace opgate::ops::bev_pool_v2 {

inline constexpr int kThreads = 256, kWarp = 32;

__device__ inline std::int64_t thread_index() { return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

/// The cell of each point, points.cells where it has none. Without intervals that is its rank.
static __global__ void __launch_bounds__(kThreads) find_cells(Points points, bool intervals, std::uint32_t* cells) {
  const std::int64_t i = thread_index();
  if (i >= points.count) return;
  const bool counts = !intervals && points.bev[i] >= 0 && points.bev[i] < points.cells && points.in_range(i);
  cells[i] = static_cast<std::uint32_t>(counts ? points.bev[i] : points.cells);
}

/// A warp writes the cells of the points of an interval. A wrong interval has no points.
static __global__ void __launch_bounds__(kThreads)
    find_cells_of_intervals(Points points, std::int64_t intervals, const std::int32_t* starts,
                            const std::int32_t* lengths, std::uint32_t* cells) {
  const std::int64_t k = thread_index() / kWarp;
  if (k >= intervals) return;
  const std::int64_t start = starts[k], length = lengths[k];
  if (start < 0 || start >= points.count || length < 0 || length > points.count - start) return;
  const std::int32_t cell = points.bev[start];
  if (cell < 0 || cell >= points.cells) return;
  for (std::int64_t i = start + threadIdx.x % kWarp; i < start + length; i += kWarp) {
    if (points.in_range(i)) cells[i] = static_cast<std::uint32_t>(cell);
  }
}

/// The memory of the kernels: the cell of each point, and the points sorted by a rank.
struct Memory {
  std::span<std::uint32_t> cells;
  SortedKeys sorted;

  static Memory take(Workspace& workspace, std::int64_t points) {
    return {workspace.take<std::uint32_t>(points), SortedKeys::take(workspace, points)};
  }
};

/// Launches what finds the cells of the points.
inline Status launch_cells(Context& context, const Inputs& in, const Points& points, std::uint32_t* cells) {
  if (points.count == 0) return {};
  const bool intervals = in.has("interval_starts");
  find_cells<<<blocks_for(points.count, kThreads), kThreads, 0, stream_of(context)>>>(points, intervals, cells);
  OPGATE_RETURN_IF_ERROR(launched());
  const std::int64_t count = intervals ? in["interval_starts"].size() : 0;
  if (count == 0) return {};
  find_cells_of_intervals<<<blocks_for(count * kWarp, kThreads), kThreads, 0, stream_of(context)>>>(
      points, count, in["interval_starts"].data<std::int32_t>(), in["interval_lengths"].data<std::int32_t>(), cells);
  return launched();
}

/// keys[i] = ranks[i], or the cell if `ranks` is null; `end` where the point has no cell.
static __global__ void __launch_bounds__(kThreads)
    find_keys(Points points, const std::uint32_t* cells, const std::int32_t* ranks, std::int64_t end,
              std::uint32_t* keys, std::uint32_t* values) {
  const std::int64_t i = thread_index();
  if (i >= points.count) return;
  keys[i] = cells[i] >= points.cells ? static_cast<std::uint32_t>(end)
            : ranks                  ? static_cast<std::uint32_t>(ranks[i])
                                     : cells[i];
  values[i] = static_cast<std::uint32_t>(i);
}

/// The sum over the points of `range` of term(point).
template <typename C, typename Term>
__device__ C sum_of(KeyRange range, const std::uint32_t* sorted, const Term& term) {
  C total = 0;
  for (std::int64_t i = range.begin; i < range.end;) {
    C part = 0;
    for (int k = 0; k < kPointsTogether && i < range.end; ++k, ++i) {
      part += term(static_cast<std::int64_t>(sorted[i]));
    }
    total += part;
  }
  return total;
}

/// to[row] = the sum over the points whose key is `row` of their weight times a row of `values`. `cells` are the rows
/// if they are there, otherwise points.feat. A warp computes 32 columns.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_rows(Points points, std::int64_t rows, std::int64_t c, const std::uint32_t* keys, const std::uint32_t* sorted,
             const T* weights, const T* values, const std::uint32_t* cells, T* to) {
  using C = ComputeType<T>;
  const std::int64_t parts = (c + kWarp - 1) / kWarp, warp = thread_index() / kWarp, row = warp / parts;
  const std::int64_t column = warp % parts * kWarp + threadIdx.x % kWarp;
  if (row >= rows || column >= c) return;
  to[row * c + column] = static_cast<T>(sum_of<C>(KeyRange::of(keys, points.count, row), sorted, [&](std::int64_t i) {
    const std::int64_t from = cells ? static_cast<std::int64_t>(cells[i]) : points.feat[i];
    return static_cast<C>(weights[points.depth[i]]) * static_cast<C>(values[from * c + column]);
  }));
}

}  // namespace opgate::ops::bev_pool_v2

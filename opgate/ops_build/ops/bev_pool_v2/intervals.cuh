// Sums over intervals of points on CUDA, without sorting the points. Each cell has a list of its intervals.
#pragma once

#include "kernel_toolkit/divisor.h"
#include "rows.cuh"

namespace opgate::ops::bev_pool_v2 {

inline constexpr std::uint32_t kNobody = 0xffffffffu;

/// Which intervals belong to a cell: first[cell], next[first[cell]], and so on up to kNobody, in ascending order.
struct Intervals {
  std::int64_t count, cells;
  const std::int32_t *starts, *lengths;
  std::uint32_t *first, *next;
  std::uint32_t* cell_of;  ///< kNobody for an interval without points, or whose first point has no cell
  /// kNobody while there is none: whether a cell has several intervals, and whether an interval is wrong.
  std::uint32_t *several, *wrong;

  static Intervals take(Workspace& workspace, std::int64_t intervals, std::int64_t cells) {
    Intervals taken{};
    taken.count = intervals;
    taken.cells = cells;
    taken.next = workspace.take<std::uint32_t>(intervals).data();
    taken.cell_of = workspace.take<std::uint32_t>(intervals).data();
    taken.first = workspace.take<std::uint32_t>(cells + 2).data();
    taken.several = taken.first + cells;
    taken.wrong = taken.several + 1;
    return taken;
  }
};

/// A thread finds the cell of an interval. As on the CPU, an interval is wrong if it begins before the end of the one
/// before it. Where none is, each point is in one interval at most, and the sums take no longer than the points are
/// many.
static __global__ void __launch_bounds__(kThreads) link(Points points, Intervals intervals) {
  const std::int64_t k = thread_index();
  if (k >= intervals.count) return;
  const std::int64_t start = intervals.starts[k], length = intervals.lengths[k];
  const std::int64_t done = k ? std::int64_t{intervals.starts[k - 1]} + intervals.lengths[k - 1] : 0;
  std::uint32_t cell = kNobody;
  if (start < 0 || start < done || length < 0 || length > points.count - start) {
    *intervals.wrong = 1;
  } else if (length > 0 && points.bev[start] >= 0 && points.bev[start] < points.cells) {
    cell = static_cast<std::uint32_t>(points.bev[start]);
    if (atomicExch(intervals.first + cell, static_cast<std::uint32_t>(k)) != kNobody) *intervals.several = 1;
  }
  intervals.cell_of[k] = cell;
  intervals.next[k] = kNobody;
}

/// Makes the lists again where a cell has several intervals: only this needs an order. A warp makes the lists of some
/// cells, from their last intervals on.
static __global__ void __launch_bounds__(kThreads) link_in_order(Intervals intervals) {
  if (*intervals.several == kNobody) return;
  const std::uint32_t lane = threadIdx.x % kWarp, warps = gridDim.x * (kThreads / kWarp);
  const auto warp = static_cast<std::uint32_t>(thread_index() / kWarp);
  for (std::int64_t cell = warp + std::int64_t{lane} * warps; cell < intervals.cells; cell += kWarp * warps) {
    intervals.first[cell] = kNobody;
  }
  for (std::int64_t base = (intervals.count - 1) / kWarp * kWarp; base >= 0; base -= kWarp) {
    const std::int64_t k = base + lane;
    const std::uint32_t cell = k < intervals.count ? intervals.cell_of[k] : kNobody;
    unsigned mine = __ballot_sync(0xffffffffu, cell != kNobody && cell % warps == warp);
    for (std::uint32_t next = kWarp - 1; mine; mine &= ~(1u << next)) {
      while (!(mine >> next & 1)) --next;
      __syncwarp();  // a lane sees what another has written
      if (lane != next) continue;
      intervals.next[k] = intervals.first[cell];
      intervals.first[cell] = static_cast<std::uint32_t>(k);
    }
  }
}

/// to[cell] = the sum over the points of the cell's intervals of their weight times a row of `values`. A thread
/// computes `lanes` columns, and loads what several points need before it adds, because most of its time is waiting.
template <int lanes, typename Index, typename T>
__global__ void __launch_bounds__(kThreads)
    add_intervals(Points points, Intervals intervals, Index threads, std::int64_t c, Divisor<Index> parts,
                  const T* weights, const T* values, T* to) {
  using C = ComputeType<T>;
  using Vector = elementwise::Lanes<T, lanes>;
  constexpr int kTogether = 4;
  static_assert(kPointsTogether % kTogether == 0);
  const auto thread = static_cast<Index>(thread_index());
  if (thread >= threads) return;
  const Index cell = thread / parts;
  const std::int64_t column = std::int64_t{thread % parts} * lanes;
  C total[lanes] = {}, part[lanes] = {};
  int together = 0;
  std::uint32_t k = *intervals.wrong == kNobody ? intervals.first[cell] : kNobody;
  for (; k != kNobody; k = intervals.next[k]) {
    const std::int32_t end = intervals.starts[k] + intervals.lengths[k];
    for (std::int64_t i = intervals.starts[k]; i < end; i += kTogether) {
      C weight[kTogether] = {};
      Vector rows[kTogether] = {};
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (i + j >= end || !points.in_range(i + j)) continue;
        weight[j] = static_cast<C>(weights[points.depth[i + j]]);
        rows[j] = elementwise::load<lanes>(values + points.feat[i + j] * c + column);
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        for (int lane = 0; lane < lanes; ++lane) part[lane] += weight[j] * static_cast<C>(rows[j].values[lane]);
      }
      together += kTogether;
      if (together < kPointsTogether) continue;
      together = 0;
      for (int lane = 0; lane < lanes; ++lane) {
        total[lane] += part[lane];
        part[lane] = 0;
      }
    }
  }
  Vector sums;
  for (int lane = 0; lane < lanes; ++lane) sums.values[lane] = static_cast<T>(total[lane] + part[lane]);
  elementwise::store(to + cell * c + column, 0, sums);
}

/// Computes the sums of all cells. There are `cells` rows of `c` columns.
template <typename T>
Status add_all_intervals(Context& context, const Points& points, const Intervals& intervals, std::int64_t c,
                         const T* weights, const T* values, T* to) {
  const cudaStream_t stream = stream_of(context);
  const std::size_t bytes = sizeof(std::uint32_t) * static_cast<std::size_t>(points.cells + 2);
  OPGATE_RETURN_IF_ERROR(cuda::status(cudaMemsetAsync(intervals.first, 0xff, bytes, stream), "clearing lists"));
  if (intervals.count > 0) {
    constexpr unsigned kBlocks = 32;  // of link_in_order, which are rarely needed
    link<<<blocks_for(intervals.count, kThreads), kThreads, 0, stream>>>(points, intervals);
    OPGATE_RETURN_IF_ERROR(launched());
    link_in_order<<<kBlocks, kThreads, 0, stream>>>(intervals);
    OPGATE_RETURN_IF_ERROR(launched());
  }
  const auto launch = [&]<int lanes>() {
    const std::int64_t parts = c / lanes, threads = points.cells * parts;
    with_index(threads, [&]<typename Index>(Index) {
      add_intervals<lanes><<<blocks_for(threads, kThreads), kThreads, 0, stream>>>(
          points, intervals, static_cast<Index>(threads), c, Divisor<Index>(parts), weights, values, to);
    });
  };
  constexpr int kLanes = elementwise::kBytes / sizeof(T);
  if (c % kLanes == 0 && elementwise::aligned(values) && elementwise::aligned(to))
    launch.template operator()<kLanes>();
  else
    launch.template operator()<1>();
  return launched();
}

}  // namespace opgate::ops::bev_pool_v2

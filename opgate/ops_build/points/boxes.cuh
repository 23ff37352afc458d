// Many points of three coordinates on CUDA: sorted so that near ones are together, with a tree of the boxes around
// them.
#pragma once

#include "kernel_toolkit/sorted.cuh"
#include "nearest.cuh"
#include "segments.cuh"

namespace opgate::ops::knn_query {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / kWarp;

/// Each axis is cut at so many of its coordinates.
inline constexpr int kCuts = 512, kCutBits = 9;

/// With fewer points in a segment or fewer queries a scan is faster.
inline constexpr std::int64_t kTreePoints = 1 << 15, kTreeQueries = 1 << 12;

inline bool tree_pays(const Inputs& in, std::int64_t segments) {
  return in.size("d") == 3 && in.size("n") >= kTreePoints * segments && in.size("m") >= kTreeQueries;
}

/// The points in their new order and the boxes around them. A leaf has kWarp points, another node kWarp boxes of the
/// level below. The points of a segment keep their range, so a leaf may have points of several segments.
template <typename T>
struct Boxes {
  static constexpr int kMostLevels = 6;  // of 2^31 points

  using Sorting = SortedKeysOf<std::uint32_t, std::uint64_t>;

  std::int64_t n;
  int levels;                 ///< leaves are level 0, and its boxes come first
  std::uint32_t total;        ///< the boxes of all levels
  T* at;                      ///< the points of a leaf: their first coordinates, their second ones, their third ones
  T* bounds;                  ///< lows and highs of all boxes on the first axis, then on the second and on the third
  T* cuts;                    ///< the sorted cuts of each axis
  std::uint32_t* lowest;      ///< the lowest row of each box
  const std::uint32_t* rows;  ///< of the points in their new order

  static std::pair<Boxes, Sorting> take(Workspace& workspace, std::int64_t n) {
    Boxes boxes{};
    if (n == 0) return {boxes, {}};
    boxes.n = n;
    do {
      boxes.total += boxes.count(boxes.levels++);
    } while (boxes.count(boxes.levels - 1) > kWarp);
    boxes.at = workspace.take<T>(std::int64_t{3 * kWarp} * boxes.count(0)).data();
    boxes.bounds = workspace.take<T>(std::int64_t{6} * boxes.total).data();
    boxes.cuts = workspace.take<T>(3 * kCuts).data();
    boxes.lowest = workspace.take<std::uint32_t>(boxes.total).data();
    const Sorting sorting = Sorting::take(workspace, n);
    boxes.rows = sorting.sorted_values.data();
    return {boxes, sorting};
  }

  /// The points of a box of a level, as a power of two.
  static OPGATE_HOST_DEVICE int shift(int level) { return 5 * (level + 1); }

  /// The number of boxes of a level.
  OPGATE_HOST_DEVICE std::uint32_t count(int level) const {
    return static_cast<std::uint32_t>((n - 1) >> shift(level)) + 1;
  }

  __device__ T& low(std::int64_t box, int axis) const { return bounds[2 * axis * std::int64_t{total} + box]; }
  __device__ T& high(std::int64_t box, int axis) const { return bounds[(2 * axis + 1) * std::int64_t{total} + box]; }

  /// The squared distance between a point and the point of the new order at `position`.
  __device__ T squared_distance(std::int64_t position, const T* from) const {
    T sum = 0;
    for (int axis = 0; axis < 3; ++axis) {
      sum = add_square(sum, at[position / kWarp * (3 * kWarp) + axis * kWarp + position % kWarp] - from[axis]);
    }
    return sum;
  }

  /// A lower bound of the squared distances between a point and those of a box. It is computed like these, and rounding
  /// keeps the order of numbers, so no computed distance is less.
  __device__ T bound(std::int64_t box, const T* from) const {
    T sum = 0;
    for (int axis = 0; axis < 3; ++axis) {
      const T below = low(box, axis) - from[axis], above = from[axis] - high(box, axis);
      const T outside = below > above ? below : above;
      sum = add_square(sum, outside > 0 ? outside : T(0));
    }
    return sum;
  }
};

/// Sorts some coordinates of an axis. Thread i takes coordinate i and counts those that are less. NaN counts as
/// infinite.
template <typename T>
__global__ void __launch_bounds__(kCuts) find_cuts(Boxes<T> boxes, const T* xyz) {
  __shared__ T samples[kCuts];
  const int own = static_cast<int>(threadIdx.x), axis = static_cast<int>(blockIdx.x);
  const T at = xyz[own * boxes.n / kCuts * 3 + axis];
  samples[own] = at == at ? at : static_cast<T>(INFINITY);
  __syncthreads();
  int before = 0;
  for (int other = 0; other < kCuts; ++other) {
    before += samples[other] < samples[own] || (samples[other] == samples[own] && other < own);
  }
  boxes.cuts[axis * kCuts + before] = samples[own];
}

/// The key of a point: its segment, and the numbers of the parts in which its coordinates are, the bits of the three
/// axes in turn (G. Morton, 1966). The parts of an axis have about equally many points, wherever the points are.
template <typename T, typename I>
__global__ void __launch_bounds__(kThreads)
    find_codes(Boxes<T> boxes, Ends<I> ends, const T* xyz, std::uint64_t* keys, std::uint32_t* rows) {
  __shared__ T cuts[3 * kCuts];
  for (int i = static_cast<int>(threadIdx.x); i < 3 * kCuts; i += kThreads) cuts[i] = boxes.cuts[i];
  __syncthreads();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= boxes.n) return;
  std::uint64_t key = static_cast<std::uint64_t>(Ends<I>::first_behind(ends.ends, ends.segments, i));
  unsigned parts[3] = {};
  for (unsigned step = kCuts / 2; step > 0; step /= 2) {
    for (int axis = 0; axis < 3; ++axis) {
      const bool behind = cuts[axis * kCuts + parts[axis] + step] <= xyz[3 * i + axis];
      parts[axis] += behind ? step : 0;
      key = key << 1 | static_cast<std::uint64_t>(behind);
    }
  }
  keys[i] = key;
  rows[i] = static_cast<std::uint32_t>(i);
}

/// A warp makes a box of a level from what is below it: points, or boxes. `first` is the first box of the level.
template <bool of_points, typename T>
__global__ void __launch_bounds__(kThreads) find_boxes(Boxes<T> boxes, int level, std::uint32_t first, const T* xyz) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t node = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (node >= boxes.count(level)) return;  // the whole warp
  const std::int64_t child = node * kWarp + lane, box = first + node;
  T low[3], high[3];
  for (int axis = 0; axis < 3; ++axis) {
    low[axis] = static_cast<T>(INFINITY);
    high[axis] = -low[axis];
  }
  std::uint32_t lowest = kNone<std::uint32_t>;
  if (!of_points && child < boxes.count(level - 1)) {
    const std::int64_t from = first - boxes.count(level - 1) + child;
    for (int axis = 0; axis < 3; ++axis) {
      low[axis] = boxes.low(from, axis);
      high[axis] = boxes.high(from, axis);
    }
    lowest = boxes.lowest[from];
  } else if (of_points && child < boxes.n) {
    const std::uint32_t row = boxes.rows[child];
    T zero = 0;
    T at[3];
    for (int axis = 0; axis < 3; ++axis) {
      at[axis] = xyz[3 * std::int64_t{row} + axis];
      zero += at[axis] * 0;
      boxes.at[node * (3 * kWarp) + axis * kWarp + lane] = at[axis];
    }
    if (zero == 0) {  // a point that isn't finite is in no box
      for (int axis = 0; axis < 3; ++axis) low[axis] = high[axis] = at[axis];
      lowest = row;
    }
  }
  for (int axis = 0; axis < 3; ++axis) {
    for (int bits = kWarp / 2; bits > 0; bits /= 2) {
      const T other_low = __shfl_xor_sync(kWholeWarp, low[axis], bits);
      const T other_high = __shfl_xor_sync(kWholeWarp, high[axis], bits);
      if (other_low < low[axis]) low[axis] = other_low;
      if (other_high > high[axis]) high[axis] = other_high;
    }
    if (lane == 0) {
      boxes.low(box, axis) = low[axis];
      boxes.high(box, axis) = high[axis];
    }
  }
  lowest = least_of_warp(lowest);
  if (lane == 0) boxes.lowest[box] = lowest;
}

/// Sorts the points and makes the tree.
template <typename T, typename I>
Status make_tree(Context& context, const Boxes<T>& boxes, const typename Boxes<T>::Sorting& sorting,
                 const Ends<I>& ends, const T* xyz) {
  const cudaStream_t stream = stream_of(context);
  find_cuts<<<3, kCuts, 0, stream>>>(boxes, xyz);
  OPGATE_RETURN_IF_ERROR(launched());
  find_codes<<<blocks_for(boxes.n, kThreads), kThreads, 0, stream>>>(boxes, ends, xyz, sorting.keys.data(),
                                                                     sorting.values.data());
  OPGATE_RETURN_IF_ERROR(launched());
  OPGATE_RETURN_IF_ERROR(sorting.sort(context, (static_cast<std::uint64_t>(ends.segments) + 1) << 3 * kCutBits));
  std::uint32_t first = 0;
  for (int level = 0; level < boxes.levels; first += boxes.count(level++)) {
    const unsigned blocks = blocks_for(std::int64_t{kWarp} * boxes.count(level), kThreads);
    if (level == 0)
      find_boxes<true><<<blocks, kThreads, 0, stream>>>(boxes, level, first, xyz);
    else
      find_boxes<false><<<blocks, kThreads, 0, stream>>>(boxes, level, first, xyz);
    OPGATE_RETURN_IF_ERROR(launched());
  }
  return {};
}

/// Where a warp is in the tree: the keys of the nodes that it may still visit, kWarp of each level.
template <typename Key, int levels>
struct Ways {
  Key keys[levels][kWarp];
};

/// Calls visit(leaf) with the leaves that may have points of `range` whose key is less than limit(). key_of(box) isn't
/// greater than that of any point in the box. The least of the children comes first.
template <typename Key, typename T, typename KeyOf, typename Limit, typename Visit>
__device__ void search(const Boxes<T>& boxes, Range range, Ways<Key, Boxes<T>::kMostLevels>& ways, const KeyOf& key_of,
                       const Limit& limit, const Visit& visit) {
  const auto lane = threadIdx.x % kWarp;
  if (range.begin >= range.end) return;
  int level = boxes.levels - 1;
  std::uint32_t parent = 0, first = boxes.total - boxes.count(level);  // the first box of the level
  const auto enter = [&] {
    const std::uint32_t child = parent * kWarp + lane;
    const int shift = Boxes<T>::shift(level);
    const bool within = child >= range.begin >> shift && child <= (range.end - 1) >> shift;
    ways.keys[level][lane] = within ? key_of(std::int64_t{first} + child) : kNone<Key>;
  };
  enter();
  while (level < boxes.levels) {
    const Key own = ways.keys[level][lane], least = least_of_warp(own);
    if (least >= limit()) {
      first += boxes.count(level++);
      parent /= kWarp;
      continue;
    }
    const auto chosen =
        static_cast<std::uint32_t>(__ffs(static_cast<int>(__ballot_sync(kWholeWarp, own == least)))) - 1;
    if (lane == chosen) ways.keys[level][lane] = kNone<Key>;
    if (level == 0) {
      visit(parent * kWarp + chosen);
    } else {
      parent = parent * kWarp + chosen;
      first -= boxes.count(--level);
      enter();
    }
  }
}

}  // namespace opgate::ops::knn_query

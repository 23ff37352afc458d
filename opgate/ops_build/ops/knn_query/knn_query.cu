#include "knn_query.h"

#include "points/boxes.cuh"

namespace opgate::ops::knn_query {
namespace {

/// The number of points that a block has in shared memory.
constexpr int kTile = 512;

__device__ float root(float x) { return __fsqrt_rn(x); }
__device__ double root(double x) { return __dsqrt_rn(x); }

template <typename T, typename I>
struct Query {
  Ends<I> ends;
  std::int64_t m, d, nsample;
  std::int32_t fill;
  const T *xyz, *queries;
  bool queries_are_points;
  std::int32_t* idx;
  T* dist;

  /// The list of the neighbours that come after the first `found`. A point whose distance isn't finite never counts:
  /// infinity is not less than the limit, nor is NaN.
  __device__ Least<Neighbour<T>> list(std::int64_t found) const {
    const std::int64_t left = nsample - found;
    return {left < kWarp ? static_cast<int>(left) : kWarp, neighbour(static_cast<T>(INFINITY), 0)};
  }

  /// Writes the neighbours of query `i` that come after the first `found`.
  __device__ void write(std::int64_t i, std::int64_t found, const Least<Neighbour<T>>& nearest) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if (lane >= nearest.most) return;
    const std::int64_t element = i * nsample + found + lane;
    const bool is_there = nearest.own != kNone<Neighbour<T>>;
    idx[element] = is_there ? static_cast<std::int32_t>(index_of(nearest.own)) : fill;
    dist[element] = is_there ? root(squared_distance_of<T>(nearest.own)) : static_cast<T>(INFINITY);
  }
};

/// Loads the points [first, first + count) of three coordinates to shared memory.
template <typename T>
__device__ void load_tile(const T* xyz, std::int64_t first, int count, T* tile) {
  constexpr int lanes = elementwise::kBytes / sizeof(T);
  using Vector = elementwise::Lanes<T, lanes>;
  const T* const from = xyz + 3 * first;
  const int numbers = 3 * count;
  int loaded = 0;
  if (reinterpret_cast<std::uintptr_t>(from) % elementwise::kBytes == 0) {
    loaded = numbers / lanes * lanes;
    for (int i = threadIdx.x; i < numbers / lanes; i += kThreads) {
      reinterpret_cast<Vector*>(tile)[i] = reinterpret_cast<const Vector*>(from)[i];
    }
  }
  for (int i = loaded + static_cast<int>(threadIdx.x); i < numbers; i += kThreads) tile[i] = from[i];
}

/// A warp computes a query. All queries of a block go over the same points at the same time. One pass over the points
/// finds as many neighbours as a warp has lanes. Further passes find more. With `three` coordinates the block has the
/// points in shared memory.
template <bool three, typename T, typename I>
__global__ void __launch_bounds__(kThreads) find_nearest(Query<T, I> query) {
  alignas(16) __shared__ T tile[three ? 3 * kTile : 1];
  __shared__ Range ranges[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  const Range own = i < query.m ? query.ends.range_of(i) : Range{0, 0};
  if (lane == 0) ranges[warp] = own;
  __syncthreads();
  Range all{query.ends.n, 0};
  for (const Range& range : ranges) {
    if (range.begin >= range.end) continue;
    if (range.begin < all.begin) all.begin = range.begin;
    if (range.end > all.end) all.end = range.end;
  }
  all.begin -= all.begin % 4;  // groups of four points are aligned to 16 bytes

  const int d = three ? 3 : static_cast<int>(query.d);
  const T* const at = query.queries + d * (i < query.m ? i : 0);
  T own_at[3] = {};
  if (three && i < query.m) {
    for (int axis = 0; axis < 3; ++axis) own_at[axis] = at[axis];
  }
  Neighbour<T> last = 0;  // the last neighbour of the previous pass; the next ones are greater
  for (std::int64_t found = 0; found < query.nsample; found += kWarp) {
    Least<Neighbour<T>> nearest = query.list(found);
    for (std::int64_t first = all.begin; first < all.end; first += kTile) {
      const int count = static_cast<int>(all.end - first < kTile ? all.end - first : kTile);
      if constexpr (three) {
        __syncthreads();  // all threads have read the previous tile
        load_tile(query.xyz, first, count, tile);
        __syncthreads();
      }
      const int begin = static_cast<int>(own.begin > first ? own.begin - first : 0);
      const int end = static_cast<int>(own.end - first < count ? own.end - first : count);
      for (int base = begin; base < end; base += kWarp) {
        const int point = base + lane;
        Neighbour<T> candidate = kNone<Neighbour<T>>;
        if (point < end) {
          T d2 = 0;
          if constexpr (three) {
#pragma unroll
            for (int axis = 0; axis < 3; ++axis) d2 = add_square(d2, tile[3 * point + axis] - own_at[axis]);
          } else {
            const T* const xyz = query.xyz + (first + point) * d;
            for (int axis = 0; axis < d; ++axis) d2 = add_square(d2, xyz[axis] - at[axis]);
          }
          candidate = neighbour(d2, static_cast<std::uint32_t>(first + point));
          if (found > 0 && candidate <= last) candidate = kNone<Neighbour<T>>;
        }
        nearest.add(candidate);
      }
    }
    last = from_lane(nearest.own, kWarp - 1);
    if (i < query.m) query.write(i, found, nearest);
  }
}

/// A warp computes a query with the tree. Points that are queries come in the order of the tree, so that the warps of a
/// block go similar ways.
template <typename T, typename I>
__global__ void __launch_bounds__(kThreads) find_in_tree(Query<T, I> query, Boxes<T> boxes) {
  using Key = Neighbour<T>;
  __shared__ Ways<Key, Boxes<T>::kMostLevels> ways[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  if (place >= query.m) return;  // the whole warp
  const std::int64_t i = query.queries_are_points ? boxes.rows[place] : place;
  Range range = query.ends.range_of(i);
  T at[3], zero = 0;
  for (int axis = 0; axis < 3; ++axis) {
    at[axis] = query.queries[3 * i + axis];
    zero += at[axis] * 0;
  }
  if (zero != 0) range.end = range.begin;  // no distance is finite
  Key last = 0;                            // the last neighbour of the previous pass; the next ones are greater
  for (std::int64_t found = 0; found < query.nsample; found += kWarp) {
    Least<Key> nearest = query.list(found);
    search<Key>(
        boxes, range, ways[warp], [&](std::int64_t box) { return neighbour(boxes.bound(box, at), boxes.lowest[box]); },
        [&] { return nearest.limit; },
        [&](std::uint32_t leaf) {
          const std::int64_t position = std::int64_t{leaf} * kWarp + lane;
          Key candidate = kNone<Key>;
          if (position >= range.begin && position < range.end) {
            candidate = neighbour(boxes.squared_distance(position, at), boxes.rows[position]);
            if (found > 0 && candidate <= last) candidate = kNone<Key>;
          }
          nearest.add(candidate);
        });
    last = from_lane(nearest.own, kWarp - 1);
    if (last == kNone<Key>) range.end = range.begin;  // there are no more
    query.write(i, found, nearest);
  }
}

struct Cuda : Checked {
  /// For any number of segments, because an engine asks for the workspace of the largest sizes.
  template <typename T, typename I>
  static std::pair<Boxes<T>, typename Boxes<T>::Sorting> workspace(Workspace& workspace, const Inputs& in,
                                                                   const Attributes&) {
    return Boxes<T>::take(workspace, tree_pays(in, 1) ? in.size("n") : 0);
  }

  template <typename T, typename I>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    OPGATE_RETURN_IF_ERROR(check_segments_given(in));
    Query<T, I> query{};
    query.ends = Ends<I>::of(in);
    query.m = in.size("m");
    query.d = in.size("d");
    query.nsample = attributes.integer("nsample");
    query.fill = static_cast<std::int32_t>(attributes.integer("fill"));
    if (query.m == 0 || query.nsample == 0) return {};
    query.xyz = in["xyz"].data<T>();
    query.queries_are_points = !in.has("new_xyz");
    query.queries = query.queries_are_points ? query.xyz : in["new_xyz"].data<T>();
    query.idx = out["idx"].data<std::int32_t>();
    query.dist = out["dist"].data<T>();
    const unsigned blocks = blocks_for(query.m, kWarps);
    if (tree_pays(in, query.ends.segments)) {
      const auto [boxes, sorting] = workspace<T, I>(context.workspace(), in, attributes);
      OPGATE_RETURN_IF_ERROR(make_tree(context, boxes, sorting, query.ends, query.xyz));
      find_in_tree<<<blocks, kThreads, 0, stream_of(context)>>>(query, boxes);
    } else if (query.d == 3) {
      find_nearest<true><<<blocks, kThreads, 0, stream_of(context)>>>(query);
    } else {
      find_nearest<false><<<blocks, kThreads, 0, stream_of(context)>>>(query);
    }
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::knn_query

OPGATE_CUDA_KERNEL(KNNQuery, opgate::ops::knn_query::Cuda)

#include "knn_query.h"

#include "kernel_toolkit/elementwise.cuh"
#include "points/distance.h"
#include "points/segments.cuh"

namespace opgate::ops::knn_query {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr unsigned kWholeWarp = 0xffffffffu;

/// The number of points that a block has in shared memory.
constexpr int kTile = 512;

template <typename T>
constexpr Neighbour<T> kNone = ~Neighbour<T>{0};

template <typename T, typename I>
struct Query {
  Ends<I> ends;
  std::int64_t m, d, nsample;
  std::int32_t fill;
  const T *xyz, *queries;
  std::int32_t* idx;
  T* dist;
};

__device__ std::uint64_t from_lane(std::uint64_t value, int lane) { return __shfl_sync(kWholeWarp, value, lane); }
__device__ std::uint64_t from_lane_before(std::uint64_t value) { return __shfl_up_sync(kWholeWarp, value, 1); }

/// A neighbour of f64 is shuffled in halves.
__device__ Neighbour<double> from_lane(Neighbour<double> value, int lane) {
  const auto high = from_lane(static_cast<std::uint64_t>(value >> 64), lane);
  return static_cast<Neighbour<double>>(high) << 64 | from_lane(static_cast<std::uint64_t>(value), lane);
}
__device__ Neighbour<double> from_lane_before(Neighbour<double> value) {
  const auto high = from_lane_before(static_cast<std::uint64_t>(value >> 64));
  return static_cast<Neighbour<double>>(high) << 64 | from_lane_before(static_cast<std::uint64_t>(value));
}

__device__ float root(float x) { return __fsqrt_rn(x); }
__device__ double root(double x) { return __dsqrt_rn(x); }

/// The nearest points of a warp so far, sorted. Lane i has point i.
template <typename T>
struct Nearest {
  Neighbour<T> own;    ///< kNone if there are fewer points
  Neighbour<T> limit;  ///< a nearer point must be less
  int most;            ///< the number of wanted points, at most that of lanes

  /// Starts without points. A point whose distance isn't finite never counts: infinity is not less than the limit, nor
  /// is NaN.
  __device__ explicit Nearest(int most) : own(kNone<T>), limit(neighbour(static_cast<T>(INFINITY), 0)), most(most) {}

  /// Adds the candidates of all lanes.
  __device__ void add(Neighbour<T> candidate) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    unsigned nearer = __ballot_sync(kWholeWarp, candidate < limit);
    for (; nearer; nearer &= nearer - 1) {
      const Neighbour<T> next = from_lane(candidate, __ffs(static_cast<int>(nearer)) - 1);
      if (next >= limit) continue;                                    // a candidate before it was nearer
      const unsigned before = __ballot_sync(kWholeWarp, own < next);  // the lowest lanes, because the points are sorted
      const int position = __popc(before);
      const Neighbour<T> moved = from_lane_before(own);
      if (lane == position) own = next;
      if (lane > position) own = moved;
      const Neighbour<T> last = from_lane(own, most - 1);
      if (last < limit) limit = last;
    }
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
    const std::int64_t left = query.nsample - found;
    Nearest<T> nearest(left < kWarp ? static_cast<int>(left) : kWarp);
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
        Neighbour<T> candidate = kNone<T>;
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
          if (found > 0 && candidate <= last) candidate = kNone<T>;
        }
        nearest.add(candidate);
      }
    }
    last = from_lane(nearest.own, kWarp - 1);
    if (i < query.m && lane < nearest.most) {
      const std::int64_t element = i * query.nsample + found + lane;
      const bool is_there = nearest.own != kNone<T>;
      query.idx[element] = is_there ? static_cast<std::int32_t>(index_of(nearest.own)) : query.fill;
      query.dist[element] = is_there ? root(squared_distance_of<T>(nearest.own)) : static_cast<T>(INFINITY);
    }
  }
}

struct Cuda : Checked {
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
    query.queries = in.has("new_xyz") ? in["new_xyz"].data<T>() : query.xyz;
    query.idx = out["idx"].data<std::int32_t>();
    query.dist = out["dist"].data<T>();
    const unsigned blocks = blocks_for(query.m, kWarps);
    if (query.d == 3) {
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

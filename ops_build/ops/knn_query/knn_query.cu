#include "knn_query.h"

#include "core/elementwise.cuh"
#include "formula.h"

namespace opgate::ops::knn_query {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr unsigned kWholeWarp = 0xffffffffu;

/// The number of points that a block has in shared memory.
constexpr int kTile = 512;

constexpr Neighbour kNone = ~Neighbour{0};

struct Query {
  std::int64_t n, m, segments, nsample;
  const float *xyz, *queries;
  const std::int32_t* ends;
  const std::int32_t* query_ends;  ///< null if all queries belong to the first segment
  std::int32_t* idx;
  float* dist;
};

struct Range {
  std::int64_t begin, end;
};

/// The points of the segment of query `i`. A kernel can't report wrong ends of segments: they give some range within
/// the points.
__device__ Range range_of(const Query& query, std::int64_t i) {
  std::int64_t segment = 0;
  if (query.query_ends) {
    for (std::int64_t behind = query.segments; segment < behind;) {  // searches the first end after i
      const std::int64_t middle = (segment + behind) / 2;
      if (query.query_ends[middle] > i) {
        behind = middle;
      } else {
        segment = middle + 1;
      }
    }
  }
  if (segment >= query.segments) return {0, 0};
  const auto within = [&](std::int64_t row) { return row < 0 ? 0 : row > query.n ? query.n : row; };
  return {segment ? within(query.ends[segment - 1]) : 0, within(query.ends[segment])};
}

/// The nearest points of a warp so far, sorted. Lane i has point i.
struct Nearest {
  Neighbour own;    ///< kNone if there are fewer points
  Neighbour limit;  ///< a nearer point must be less
  int most;         ///< the number of wanted points, at most that of lanes

  /// Starts without points. A point whose distance isn't finite never counts: infinity is not less than the limit, nor
  /// is NaN.
  __device__ explicit Nearest(int most) : own(kNone), limit(neighbour(INFINITY, 0)), most(most) {}

  /// Adds the candidates of all lanes.
  __device__ void add(Neighbour candidate) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    unsigned nearer = __ballot_sync(kWholeWarp, candidate < limit);
    for (; nearer; nearer &= nearer - 1) {
      const Neighbour next = __shfl_sync(kWholeWarp, candidate, __ffs(static_cast<int>(nearer)) - 1);
      if (next >= limit) continue;                                    // a candidate before it was nearer
      const unsigned before = __ballot_sync(kWholeWarp, own < next);  // the lowest lanes, because the points are sorted
      const int position = __popc(before);
      const Neighbour moved = __shfl_up_sync(kWholeWarp, own, 1);
      if (lane == position) own = next;
      if (lane > position) own = moved;
      const Neighbour last = __shfl_sync(kWholeWarp, own, most - 1);
      if (last < limit) limit = last;
    }
  }
};

/// Loads the points [first, first + count) to shared memory.
__device__ void load_tile(const float* xyz, std::int64_t first, int count, float* tile) {
  using Four = elementwise::Lanes<float, 4>;
  const float* const from = xyz + 3 * first;
  const int floats = 3 * count;
  int loaded = 0;
  if (reinterpret_cast<std::uintptr_t>(from) % sizeof(Four) == 0) {
    loaded = floats / 4 * 4;
    for (int i = threadIdx.x; i < floats / 4; i += kThreads) {
      reinterpret_cast<Four*>(tile)[i] = reinterpret_cast<const Four*>(from)[i];
    }
  }
  for (int i = loaded + static_cast<int>(threadIdx.x); i < floats; i += kThreads) tile[i] = from[i];
}

/// A warp computes a query. All queries of a block go over the same points at the same time. One pass over the points
/// finds as many neighbours as a warp has lanes. Further passes find more.
__global__ void __launch_bounds__(kThreads) find_nearest(Query query) {
  alignas(16) __shared__ float tile[3 * kTile];
  __shared__ Range ranges[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  const Range own = i < query.m ? range_of(query, i) : Range{0, 0};
  if (lane == 0) ranges[warp] = own;
  __syncthreads();
  Range all{query.n, 0};
  for (const Range& range : ranges) {
    if (range.begin >= range.end) continue;
    if (range.begin < all.begin) all.begin = range.begin;
    if (range.end > all.end) all.end = range.end;
  }
  all.begin -= all.begin % 4;  // groups of four points are aligned to 16 bytes

  const float* const at = query.queries + 3 * (i < query.m ? i : 0);
  const float x = i < query.m ? at[0] : 0, y = i < query.m ? at[1] : 0, z = i < query.m ? at[2] : 0;
  Neighbour last = 0;  // the last neighbour of the previous pass; the next ones are greater
  for (std::int64_t found = 0; found < query.nsample; found += kWarp) {
    const std::int64_t left = query.nsample - found;
    Nearest nearest(left < kWarp ? static_cast<int>(left) : kWarp);
    for (std::int64_t first = all.begin; first < all.end; first += kTile) {
      const int count = static_cast<int>(all.end - first < kTile ? all.end - first : kTile);
      __syncthreads();  // all threads have read the previous tile
      load_tile(query.xyz, first, count, tile);
      __syncthreads();
      const int begin = static_cast<int>(own.begin > first ? own.begin - first : 0);
      const int end = static_cast<int>(own.end - first < count ? own.end - first : count);
      for (int base = begin; base < end; base += kWarp) {
        const int point = base + lane;
        Neighbour candidate = kNone;
        if (point < end) {
          const float* const xyz = tile + 3 * point;
          const float d2 = squared_distance(xyz[0] - x, xyz[1] - y, xyz[2] - z);
          candidate = neighbour(d2, static_cast<std::uint32_t>(first + point));
          if (found > 0 && candidate <= last) candidate = kNone;
        }
        nearest.add(candidate);
      }
    }
    last = __shfl_sync(kWholeWarp, nearest.own, kWarp - 1);
    if (i < query.m && lane < nearest.most) {
      const std::int64_t element = i * query.nsample + found + lane;
      const bool is_there = nearest.own != kNone;
      query.idx[element] = is_there ? static_cast<std::int32_t>(index_of(nearest.own)) : -1;
      query.dist[element] = is_there ? __fsqrt_rn(squared_distance_of(nearest.own)) : INFINITY;
    }
  }
}

struct Cuda : Checked {
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    OPGATE_RETURN_IF_ERROR(check_segments_given(in));
    Query query{};
    query.n = in.size("n");
    query.m = in.size("m");
    query.segments = in.size("b");
    query.nsample = attributes.integer("nsample");
    if (query.m == 0 || query.nsample == 0) return {};
    query.xyz = in["xyz"].data<float>();
    query.queries = in.has("new_xyz") ? in["new_xyz"].data<float>() : query.xyz;
    query.ends = in["offset"].data<std::int32_t>();
    query.query_ends = in.has("new_offset") ? in["new_offset"].data<std::int32_t>()
                       : in.has("new_xyz")  ? nullptr
                                            : query.ends;
    query.idx = out["idx"].data<std::int32_t>();
    query.dist = out["dist"].data<float>();
    find_nearest<<<blocks_for(query.m, kWarps), kThreads, 0, stream_of(context)>>>(query);
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::knn_query

OPGATE_CUDA_KERNEL(KNNQuery, opgate::ops::knn_query::Cuda)

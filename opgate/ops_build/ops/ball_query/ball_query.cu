#include "ball_query.h"

#include "points/boxes.cuh"

namespace opgate::ops::ball_query {
namespace {

using knn_query::Boxes;
using knn_query::kNone;
using knn_query::kThreads;
using knn_query::kWarp;
using knn_query::kWarps;
using knn_query::kWholeWarp;
using knn_query::Range;

/// A query looks at so many points before it takes the tree, because balls with many points have enough among them.
constexpr std::int64_t kFirst = knn_query::kTreePoints / 32;

template <typename T, typename I>
struct Query {
  knn_query::Ends<I> ends;
  std::int64_t m, d, nsample;
  Ball<T> ball;
  bool pads_first;
  std::int32_t fill;
  const T *xyz, *queries;
  bool queries_are_points;
  std::int32_t *idx, *count;  ///< count may be null
};

/// The rows that a warp has found for a query.
struct Found {
  std::int64_t count;
  std::int32_t first;  ///< what the places behind the last row have
};

/// Finds the first rows of `range` in the ball of query `i`. A warp looks at 32 points at a time, and stops when it has
/// found enough.
template <bool three, typename T, typename I>
__device__ Found scan(const Query<T, I>& query, std::int64_t i, Range range) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t d = three ? 3 : query.d;
  const T* const at = query.queries + d * i;
  std::int32_t* const idx = query.idx + i * query.nsample;
  Found found{0, query.fill};
  for (std::int64_t base = range.begin; base < range.end && found.count < query.nsample; base += kWarp) {
    const std::int64_t point = base + lane;
    bool hit = false;
    if (point < range.end) {
      T d2 = 0;
      for (std::int64_t axis = 0; axis < d; ++axis)
        d2 = knn_query::add_square(d2, query.xyz[point * d + axis] - at[axis]);
      hit = query.ball.has(d2);
    }
    const unsigned hits = __ballot_sync(kWholeWarp, hit);
    if (!hits) continue;
    const std::int64_t place = found.count + __popc(hits & ((1u << lane) - 1));
    if (hit && place < query.nsample) idx[place] = static_cast<std::int32_t>(point);
    if (found.count == 0 && query.pads_first)
      found.first = static_cast<std::int32_t>(base + __ffs(static_cast<int>(hits)) - 1);
    found.count += __popc(hits);
  }
  if (found.count > query.nsample) found.count = query.nsample;
  return found;
}

/// Writes what comes behind the rows.
template <typename T, typename I>
__device__ void finish(const Query<T, I>& query, std::int64_t i, const Found& found) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  std::int32_t* const idx = query.idx + i * query.nsample;
  for (std::int64_t place = found.count + lane; place < query.nsample; place += kWarp) idx[place] = found.first;
  if (lane == 0 && query.count) query.count[i] = static_cast<std::int32_t>(found.count);
}

/// A warp computes a query.
template <bool three, typename T, typename I>
__global__ void __launch_bounds__(kThreads) find_in_balls(Query<T, I> query) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (i >= query.m) return;  // the whole warp
  finish(query, i, scan<three>(query, i, query.ends.range_of(i)));
}

/// A warp computes a query, the rows behind the first ones with the tree: it keeps the 32 lowest that are in the ball.
/// Every further 32 rows take another pass.
template <typename T, typename I>
__global__ void __launch_bounds__(kThreads) find_in_tree(Query<T, I> query, Boxes<T> boxes) {
  using Key = std::uint32_t;
  __shared__ knn_query::Ways<Key, Boxes<T>::kMostLevels> ways[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  if (place >= query.m) return;  // the whole warp
  const std::int64_t i = query.queries_are_points ? boxes.rows[place] : place;
  const Range range = query.ends.range_of(i);
  T at[3], zero = 0;
  for (int axis = 0; axis < 3; ++axis) {
    at[axis] = query.queries[3 * i + axis];
    zero += at[axis] * 0;
  }
  std::int64_t next = range.begin + kFirst < range.end ? range.begin + kFirst : range.end;  // the least row of interest
  Found found = scan<true>(query, i, {range.begin, next});
  while (zero == 0 && next < range.end && found.count < query.nsample) {
    const std::int64_t left = query.nsample - found.count;
    knn_query::Least<Key> lowest(left < kWarp ? static_cast<int>(left) : kWarp, kNone<Key>);
    search<Key>(
        boxes, range, ways[warp],
        [&](std::int64_t box) { return boxes.bound(box, at) < query.ball.below ? boxes.lowest[box] : kNone<Key>; },
        [&] { return lowest.limit; },
        [&](std::uint32_t leaf) {
          const std::int64_t position = std::int64_t{leaf} * kWarp + lane;
          Key candidate = kNone<Key>;
          if (position >= range.begin && position < range.end && boxes.rows[position] >= next &&
              query.ball.has(boxes.squared_distance(position, at)))
            candidate = boxes.rows[position];
          lowest.add(candidate);
        });
    const bool is_there = lowest.own != kNone<Key>;
    const int count = __popc(__ballot_sync(kWholeWarp, is_there && lane < lowest.most));
    if (lane < count) query.idx[i * query.nsample + found.count + lane] = static_cast<std::int32_t>(lowest.own);
    const Key first = knn_query::from_lane(lowest.own, 0), last = knn_query::from_lane(lowest.own, lowest.most - 1);
    if (found.count == 0 && count > 0 && query.pads_first) found.first = static_cast<std::int32_t>(first);
    found.count += count;
    next = last == kNone<Key> ? range.end : std::int64_t{last} + 1;
  }
  finish(query, i, found);
}

struct Cuda : Checked {
  /// For any number of segments, because an engine asks for the workspace of the largest sizes.
  template <typename T, typename I>
  static std::pair<Boxes<T>, typename Boxes<T>::Sorting> workspace(Workspace& workspace, const Inputs& in,
                                                                   const Attributes&) {
    return Boxes<T>::take(workspace, knn_query::tree_pays(in, 1) ? in.size("n") : 0);
  }

  template <typename T, typename I>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    OPGATE_RETURN_IF_ERROR(knn_query::check_segments_given(in));
    Query<T, I> query{};
    query.ends = knn_query::Ends<I>::of(in);
    query.m = in.size("m");
    query.d = in.size("d");
    query.nsample = attributes.integer("nsample");
    query.ball = Ball<T>::of(attributes);
    query.pads_first = attributes.text("pad") == "first";
    query.fill = static_cast<std::int32_t>(attributes.integer("fill"));
    query.xyz = in["xyz"].data<T>();
    query.queries_are_points = !in.has("new_xyz");
    query.queries = query.queries_are_points ? query.xyz : in["new_xyz"].data<T>();
    query.idx = out["idx"].data<std::int32_t>();
    query.count = out.has("count") ? out["count"].data<std::int32_t>() : nullptr;
    if (query.m == 0) return {};
    const unsigned blocks = blocks_for(query.m, kWarps);
    if (knn_query::tree_pays(in, query.ends.segments)) {
      const auto [boxes, sorting] = workspace<T, I>(context.workspace(), in, attributes);
      OPGATE_RETURN_IF_ERROR(make_tree(context, boxes, sorting, query.ends, query.xyz));
      find_in_tree<<<blocks, kThreads, 0, stream_of(context)>>>(query, boxes);
    } else if (query.d == 3) {
      find_in_balls<true><<<blocks, kThreads, 0, stream_of(context)>>>(query);
    } else {
      find_in_balls<false><<<blocks, kThreads, 0, stream_of(context)>>>(query);
    }
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::ball_query

OPGATE_CUDA_KERNEL(BallQuery, opgate::ops::ball_query::Cuda)

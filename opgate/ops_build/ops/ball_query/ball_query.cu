#include "ball_query.h"

#include "kernel_toolkit/elementwise.cuh"
#include "points/distance.h"
#include "points/segments.cuh"

namespace opgate::ops::ball_query {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr unsigned kWholeWarp = 0xffffffffu;

template <typename T, typename I>
struct Query {
  knn_query::Ends<I> ends;
  std::int64_t m, d, nsample;
  Ball<T> ball;
  bool pads_first;
  std::int32_t fill;
  const T *xyz, *queries;
  std::int32_t *idx, *count;  ///< count may be null
};

/// A warp computes a query. It looks at 32 points at a time, and stops when it has found enough.
template <bool three, typename T, typename I>
__global__ void __launch_bounds__(kThreads) find_in_balls(Query<T, I> query) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (i >= query.m) return;  // the whole warp
  const knn_query::Range range = query.ends.range_of(i);
  const std::int64_t d = three ? 3 : query.d;
  const T* const at = query.queries + d * i;
  std::int32_t* const idx = query.idx + i * query.nsample;
  std::int64_t found = 0;
  std::int32_t first = query.fill;
  for (std::int64_t base = range.begin; base < range.end && found < query.nsample; base += kWarp) {
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
    const std::int64_t place = found + __popc(hits & ((1u << lane) - 1));
    if (hit && place < query.nsample) idx[place] = static_cast<std::int32_t>(point);
    if (found == 0 && query.pads_first) first = static_cast<std::int32_t>(base + __ffs(static_cast<int>(hits)) - 1);
    found += __popc(hits);
  }
  if (found > query.nsample) found = query.nsample;
  for (std::int64_t place = found + lane; place < query.nsample; place += kWarp) idx[place] = first;
  if (lane == 0 && query.count) query.count[i] = static_cast<std::int32_t>(found);
}

struct Cuda : Checked {
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
    query.queries = in.has("new_xyz") ? in["new_xyz"].data<T>() : query.xyz;
    query.idx = out["idx"].data<std::int32_t>();
    query.count = out.has("count") ? out["count"].data<std::int32_t>() : nullptr;
    if (query.m == 0) return {};
    const unsigned blocks = blocks_for(query.m, kWarps);
    if (query.d == 3) {
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

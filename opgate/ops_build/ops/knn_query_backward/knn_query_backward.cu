#include "knn_query_backward.h"

#include "formula.h"
#include "kernel_toolkit/sorted.cuh"

namespace opgate::ops::knn_query_backward {
namespace {

constexpr int kThreads = 256;

template <typename T>
struct Neighbours {
  std::int64_t n, m, d, nsample;
  const T *grad, *dist, *xyz, *queries;
  const std::int32_t* idx;

  __device__ bool counts(std::int64_t i) const { return has_gradient(dist[i]) && idx[i] >= 0 && idx[i] < n; }
  __device__ double value(std::int64_t i, std::int64_t axis) const {
    return part(grad[i], dist[i], xyz[idx[i] * d + axis], queries[i / nsample * d + axis]);
  }
  /// The sum over the neighbours of a query.
  __device__ double of_query(std::int64_t query, std::int64_t axis) const {
    double sum = 0;
    for (std::int64_t i = query * nsample; i < (query + 1) * nsample; ++i) {
      if (counts(i)) sum -= value(i, axis);
    }
    return sum;
  }
};

__device__ std::int64_t thread_index() { return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

/// The key of a neighbour is its point; n if it doesn't count.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    find_keys(Neighbours<T> all, std::uint32_t* keys, std::uint64_t* positions) {
  const std::int64_t i = thread_index();
  if (i >= all.m * all.nsample) return;
  keys[i] = static_cast<std::uint32_t>(all.counts(i) ? all.idx[i] : all.n);
  positions[i] = static_cast<std::uint64_t>(i);
}

/// A thread computes a coordinate of a point.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    sum_points(Neighbours<T> all, const std::uint32_t* keys, const std::uint64_t* positions, bool self, T* grad_xyz) {
  const std::int64_t point = thread_index() / all.d, axis = thread_index() % all.d;
  if (point >= all.n) return;
  const std::int64_t count = all.m * all.nsample;
  const auto key = static_cast<std::uint32_t>(point);
  double sum = self ? all.of_query(point, axis) : 0;
  for (std::int64_t i = first_of(keys, count, key); i < count && keys[i] == key; ++i) {
    sum += all.value(static_cast<std::int64_t>(positions[i]), axis);
  }
  grad_xyz[point * all.d + axis] = static_cast<T>(sum);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) sum_queries(Neighbours<T> all, bool self, T* grad_queries) {
  const std::int64_t query = thread_index() / all.d, axis = thread_index() % all.d;
  if (query < all.m) grad_queries[query * all.d + axis] = static_cast<T>(self ? 0.0 : all.of_query(query, axis));
}

struct Cuda : Checked {
  using Memory = SortedKeysOf<std::uint64_t>;

  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    return Memory::take(workspace, in.size("m") * in.size("nsample"));
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    OPGATE_RETURN_IF_ERROR(check_queries(in));
    const bool self = !in.has("new_xyz");
    Neighbours<T> all{};
    all.n = in.size("n");
    all.m = in.size("m");
    all.d = in.size("d");
    all.nsample = in.size("nsample");
    all.grad = in["grad_dist"].data<T>();
    all.dist = in["dist"].data<T>();
    all.xyz = in["xyz"].data<T>();
    all.queries = self ? all.xyz : in["new_xyz"].data<T>();
    all.idx = in["idx"].data<std::int32_t>();
    const cudaStream_t stream = stream_of(context);
    const std::int64_t count = all.m * all.nsample;
    if (all.d == 0) return {};
    const Memory memory = workspace(context.workspace(), in, attributes);
    if (count > 0) {
      find_keys<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(all, memory.keys.data(), memory.values.data());
      OPGATE_RETURN_IF_ERROR(launched());
      OPGATE_RETURN_IF_ERROR(memory.sort(context, all.n));
    }
    sum_points<<<blocks_for(all.n * all.d, kThreads), kThreads, 0, stream>>>(
        all, memory.sorted_keys.data(), memory.sorted_values.data(), self, out["grad_xyz"].data<T>());
    OPGATE_RETURN_IF_ERROR(launched());
    sum_queries<<<blocks_for(all.m * all.d, kThreads), kThreads, 0, stream>>>(all, self, out["grad_new_xyz"].data<T>());
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::knn_query_backward

OPGATE_CUDA_KERNEL(KNNQueryBackward, opgate::ops::knn_query_backward::Cuda)

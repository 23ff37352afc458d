#include "knn_query_backward.h"

#include <algorithm>

#include "formula.h"

namespace opgate::ops::knn_query_backward {
namespace {

struct Cpu : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    OPGATE_RETURN_IF_ERROR(check_queries(in));
    const std::int64_t n = in.size("n"), m = in.size("m"), d = in.size("d"), nsample = in.size("nsample");
    const T *const grad = in["grad_dist"].data<T>(), *const dist = in["dist"].data<T>(),
                   *const xyz = in["xyz"].data<T>();
    const auto* const idx = in["idx"].data<std::int32_t>();
    const bool self = !in.has("new_xyz");
    const T* const queries = self ? xyz : in["new_xyz"].data<T>();
    for (std::int64_t i = 0; i < m * nsample; ++i) {
      if (has_gradient(dist[i]) && (idx[i] < 0 || idx[i] >= n)) {
        return Status::invalid("input 'idx': element " + std::to_string(i) + " is " + std::to_string(idx[i]) +
                               ", expected a row of 'xyz', 0.." + std::to_string(n - 1));
      }
    }
    // One thread adds to the points, in the order of the queries.
    double* const sums = context.scratch<double>(n * d).data();
    std::fill_n(sums, n * d, 0.0);
    for (std::int64_t i = 0; i < m * nsample; ++i) {
      if (!has_gradient(dist[i])) continue;
      const std::int64_t point = idx[i] * d, query = i / nsample * d;
      for (std::int64_t axis = 0; axis < d; ++axis) {
        const double value = part(grad[i], dist[i], xyz[point + axis], queries[query + axis]);
        sums[point + axis] += value;
        if (self) sums[query + axis] -= value;
      }
    }
    T* const grad_xyz = out["grad_xyz"].data<T>();
    for (std::int64_t i = 0; i < n * d; ++i) grad_xyz[i] = static_cast<T>(sums[i]);
    T* const grad_queries = out["grad_new_xyz"].data<T>();
    if (self) {
      std::fill_n(grad_queries, m * d, T(0));
      return {};
    }
    context.parallel_for(m, 256, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t query = begin; query < end; ++query) {
        for (std::int64_t axis = 0; axis < d; ++axis) {
          double sum = 0;
          for (std::int64_t i = query * nsample; i < (query + 1) * nsample; ++i) {
            if (!has_gradient(dist[i])) continue;
            sum -= part(grad[i], dist[i], xyz[idx[i] * d + axis], queries[query * d + axis]);
          }
          grad_queries[query * d + axis] = static_cast<T>(sum);
        }
      }
    });
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::knn_query_backward

OPGATE_CPU_KERNEL(KNNQueryBackward, opgate::ops::knn_query_backward::Cpu)

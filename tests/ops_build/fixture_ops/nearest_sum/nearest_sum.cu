// One thread is enough: this tests how an adapter handles optional inputs and outputs.
#include "kernel_toolkit/elementwise.cuh"
#include "nearest_sum.h"

namespace opgate::ops {
namespace {

struct Arrays {
  const float *points, *query, *weight;
  const std::int32_t* segment;
  float* sum;
  std::int64_t* count;
};

__global__ void nearest_sum(std::int64_t n, std::int64_t m, std::int64_t d, float scale, Arrays arrays) {
  double all = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (arrays.segment && arrays.segment[i] != 0) continue;
    for (std::int64_t k = 0; k < d; ++k) all += arrays.points[i * d + k];
  }
  for (std::int64_t j = 0; j < m; ++j) {
    double own = 0;
    for (std::int64_t k = 0; k < d; ++k) own += arrays.query[j * d + k];
    const double weight = arrays.weight ? arrays.weight[j] : 1.0;
    arrays.sum[j] = static_cast<float>((all + own) * scale * weight);
    if (arrays.count) arrays.count[j] = n;
  }
}

struct NearestSumCuda {
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const auto* points = in["points"].data<float>();
    const Arrays arrays{.points = points,
                        .query = in.has("query") ? in["query"].data<float>() : points,
                        .weight = in.has("weight") ? in["weight"].data<float>() : nullptr,
                        .segment = in.has("segment") ? in["segment"].data<std::int32_t>() : nullptr,
                        .sum = out["sum"].data<float>(),
                        .count = out.has("count") ? out["count"].data<std::int64_t>() : nullptr};
    nearest_sum<<<1, 1, 0, stream_of(context)>>>(in.size("n"), in.size("m"), in.size("d"),
                                                 static_cast<float>(attributes.number("scale")), arrays);
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops

OPGATE_CUDA_KERNEL(NearestSum, opgate::ops::NearestSumCuda)

#include "nearest_sum.h"

namespace opgate::ops {
struct NearestSumCpu {
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Tensor& points = in["points"];
    const Tensor& query = in.has("query") ? in["query"] : points;
    const std::int64_t m = in.size("m"), d = in.size("d");
    const bool has_segment = in.has("segment"), has_weight = in.has("weight");
    double all = 0;
    for (std::int64_t i = 0; i < points.dim(0); ++i) {
      if (has_segment && in["segment"].data<std::int32_t>()[i] != 0) continue;
      for (std::int64_t k = 0; k < d; ++k) all += points.data<float>()[i * d + k];
    }
    context.parallel_for(m, 4, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t j = begin; j < end; ++j) {
        double own = 0;
        for (std::int64_t k = 0; k < d; ++k) own += query.data<float>()[j * d + k];
        const double weight = has_weight ? in["weight"].data<float>()[j] : 1.0;
        out["sum"].data<float>()[j] = static_cast<float>((all + own) * attributes.number("scale") * weight);
      }
    });
    if (out.has("count")) std::ranges::fill(out["count"].span<std::int64_t>(), points.dim(0));
    return {};
  }
};
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(NearestSum, opgate::ops::NearestSumCpu)

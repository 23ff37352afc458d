#include "three_interpolate.h"

#include <vector>

#include "weighted_rows.h"

namespace opgate::ops::three_interpolate {
namespace {

struct Cpu : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const std::int64_t m = in.size("m"), c = in.size("c"), k = in.size("k");
    OPGATE_RETURN_IF_ERROR(check_rows(in["idx"], in.size("n")));
    const T *const features = in["features"].data<T>(), *const weight = in["weight"].data<T>();
    const auto* const idx = in["idx"].data<std::int32_t>();
    T* const y = out["y"].data<T>();
    if (c == 0) return {};
    const std::int64_t work = std::max<std::int64_t>(1, (k + 1) * c);
    context.parallel_for(m, std::max<std::int64_t>(1, kElementGrain / work), [&](std::int64_t begin, std::int64_t end) {
      std::vector<Weighted<T>> rows(static_cast<std::size_t>(k));
      for (std::int64_t query = begin; query < end; ++query) {
        std::size_t count = 0;
        for (std::int64_t i = query * k; i < (query + 1) * k; ++i) {
          if (idx[i] >= 0) rows[count++] = {features + idx[i] * c, static_cast<ComputeType<T>>(weight[i])};
        }
        const auto term = [&](std::int64_t j) { return rows[static_cast<std::size_t>(j)]; };
        sum_rows(static_cast<std::int64_t>(count), c, term, y + query * c);
      }
    });
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::three_interpolate

OPGATE_CPU_KERNEL(ThreeInterpolate, opgate::ops::three_interpolate::Cpu)

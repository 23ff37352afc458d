#include "sum_all.h"

namespace opgate::ops {
struct SumAllCpu {
  template <typename T>
  Status operator()(Context&, const Inputs& in, const Attributes&, Outputs& out) const {
    const MutableTensor& y = out["y"];
    std::ranges::fill(y.span<T>(), T{0});
    for (const Tensor* x : in.all("xs")) {
      for (std::int64_t i = 0; i < y.size(); ++i) y.data<T>()[i] += x->data<T>()[i];
    }
    return {};
  }
};
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(SumAll, opgate::ops::SumAllCpu)

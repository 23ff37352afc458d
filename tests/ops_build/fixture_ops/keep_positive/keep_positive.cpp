#include "keep_positive.h"

namespace opgate::ops {
struct KeepPositiveCpu {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const Tensor& x = in["x"];
    const auto indices = context.scratch<std::int64_t>(x.size());
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < x.size(); ++i) {
      if (x.data<T>()[i] > T{0}) indices[count++] = i;
    }
    OPGATE_RETURN_IF_ERROR(out.bind("v", count));
    for (std::int64_t i = 0; i < count; ++i) {
      out["values"].data<T>()[i] = x.data<T>()[indices[i]];
      out["indices"].data<std::int64_t>()[i] = indices[i];
    }
    return {};
  }
};
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(KeepPositive, opgate::ops::KeepPositiveCpu)

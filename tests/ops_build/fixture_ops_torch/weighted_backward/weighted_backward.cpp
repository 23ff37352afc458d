#include "kernel_toolkit/op.h"

OPGATE_OP(WeightedBackward,
          "<T: f32|f64> WeightedBackward(grad_y: T[n,d], x: T[n,d], weight: T[d]; scale: float=1.5) -> "
          "(grad_weight: T[d], grad_x: T[n,d])",
          "The gradient of Weighted by x and by weight, but not by bias.")

namespace opgate::ops {
struct WeightedBackwardCpu {
  template <typename T>
  Status operator()(Context&, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t d = in.size("d");
    const T scale = static_cast<T>(attributes.number("scale"));
    std::ranges::fill(out["grad_weight"].span<T>(), T{0});
    for (std::int64_t i = 0; i < in["x"].size(); ++i) {
      const T gradient = scale * in["grad_y"].data<T>()[i];
      out["grad_x"].data<T>()[i] = gradient * in["weight"].data<T>()[i % d];
      out["grad_weight"].data<T>()[i % d] += gradient * in["x"].data<T>()[i];
    }
    return {};
  }
};
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(WeightedBackward, opgate::ops::WeightedBackwardCpu)

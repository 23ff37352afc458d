#include "kernel_toolkit/op.h"

OPGATE_OP(SquashBackward, "<T: f32|f64> SquashBackward(grad_y: T[...], y: T[...]) -> (grad_x: T[...])",
          "The gradient of Squash.")

namespace opgate::ops {
struct SquashBackwardCpu {
  template <typename T>
  Status operator()(Context&, const Inputs& in, const Attributes&, Outputs& out) const {
    std::ranges::transform(in["grad_y"].span<T>(), in["y"].span<T>(), out["grad_x"].data<T>(),
                           [](T gradient, T y) { return gradient * (1 - y * y); });
    return {};
  }
};
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(SquashBackward, opgate::ops::SquashBackwardCpu)

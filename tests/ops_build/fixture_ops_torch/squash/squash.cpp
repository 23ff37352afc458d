// Tests a gradient that is computed from the output of the forward op.
#include <cmath>

#include "kernel_toolkit/op.h"

OPGATE_OP(Squash, "<T: f32|f64> Squash(x: T[...]) -> (y: T[...])", "tanh x, elementwise.")

namespace opgate::ops {
struct SquashCpu {
  template <typename T>
  Status operator()(Context&, const Inputs& in, const Attributes&, Outputs& out) const {
    std::ranges::transform(in["x"].span<T>(), out["y"].data<T>(), [](T x) { return std::tanh(x); });
    return {};
  }
};
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(Squash, opgate::ops::SquashCpu)

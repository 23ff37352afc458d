#include "mish_backward.h"

#include "core/elementwise.h"
#include "ops/mish/formula.h"

namespace opgate::ops {
namespace {

struct MishBackwardCpu {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const Tensor& grad_x = out["grad_x"];
    map_elements<T>(
        context, grad_x.size(), grad_x.data<T>(), [](auto grad_y, auto x) { return grad_y * mish_derivative(x); },
        static_cast<const T*>(in["grad_y"].data<T>()), static_cast<const T*>(in["x"].data<T>()));
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(MishBackward, opgate::ops::MishBackwardCpu)

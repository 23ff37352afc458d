#include "leaky_relu.h"

#include "core/elementwise.h"
#include "formula.h"

namespace opgate::ops {
namespace {

struct LeakyReluCpu {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Leaky leaky{static_cast<ComputeType<T>>(attributes.number("alpha"))};
    const Tensor& y = out["y"];
    map_elements<T>(context, y.size(), y.data<T>(), leaky, static_cast<const T*>(in["x"].data<T>()));
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(LeakyRelu, opgate::ops::LeakyReluCpu)

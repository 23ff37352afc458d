#include "leaky_relu.h"

#include "core/elementwise.cuh"
#include "formula.h"

namespace opgate::ops {
namespace {

struct LeakyReluCuda {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Leaky leaky{static_cast<ComputeType<T>>(attributes.number("alpha"))};
    const Tensor& y = out["y"];
    return map_elements<T>(context, y.size(), y.data<T>(), leaky, static_cast<const T*>(in["x"].data<T>()));
  }
};

}  // namespace
}  // namespace opgate::ops

OPGATE_CUDA_KERNEL(LeakyRelu, opgate::ops::LeakyReluCuda)

#include "mish_backward.h"

#include "core/elementwise.cuh"
#include "ops/mish/formula.h"

namespace opgate::ops {
namespace {

struct GradientOf {
  template <typename C>
  OPGATE_HOST_DEVICE C operator()(C grad_y, C x) const {
    return grad_y * mish_derivative(x);
  }
};

struct MishBackwardCuda {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const Tensor& grad_x = out["grad_x"];
    return map_elements<T>(context, grad_x.size(), grad_x.data<T>(), GradientOf{},
                           static_cast<const T*>(in["grad_y"].data<T>()), static_cast<const T*>(in["x"].data<T>()));
  }
};

}  // namespace
}  // namespace opgate::ops

OPGATE_CUDA_KERNEL(MishBackward, opgate::ops::MishBackwardCuda)

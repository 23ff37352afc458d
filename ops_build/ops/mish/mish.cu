#include "mish.h"

#include "core/elementwise.cuh"
#include "formula.h"

namespace opgate::ops {
namespace {

struct MishOf {
  template <typename C>
  OPGATE_HOST_DEVICE C operator()(C x) const {
    return mish(x);
  }
};

struct MishCuda {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const Tensor& y = out["y"];
    return map_elements<T>(context, y.size(), y.data<T>(), MishOf{}, static_cast<const T*>(in["x"].data<T>()));
  }
};

}  // namespace
}  // namespace opgate::ops

OPGATE_CUDA_KERNEL(Mish, opgate::ops::MishCuda)

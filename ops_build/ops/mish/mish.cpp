#include "mish.h"

#include "core/elementwise.h"
#include "formula.h"

namespace opgate::ops {
namespace {

struct MishCpu {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const Tensor& y = out["y"];
    map_elements<T>(
        context, y.size(), y.data<T>(), [](auto x) { return mish(x); }, static_cast<const T*>(in["x"].data<T>()));
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(Mish, opgate::ops::MishCpu)

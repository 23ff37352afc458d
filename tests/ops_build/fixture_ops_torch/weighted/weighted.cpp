// Tests a gradient for some of the inputs. The backward op takes inputs of the forward op and an attribute.
#include "kernel_toolkit/op.h"

OPGATE_OP(Weighted,
          "<T: f32|f64> Weighted(x: T[n,d], weight: T[d], bias?: T[d]; scale: float=1.5) -> (y: T[n,d], count?: i64[])",
          "scale x weight + bias, and the number of elements.")

namespace opgate::ops {
struct WeightedCpu {
  template <typename T>
  Status operator()(Context&, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t d = in.size("d");
    const T scale = static_cast<T>(attributes.number("scale"));
    for (std::int64_t i = 0; i < in["x"].size(); ++i) {
      out["y"].data<T>()[i] = scale * in["x"].data<T>()[i] * in["weight"].data<T>()[i % d];
      if (in.has("bias")) out["y"].data<T>()[i] += in["bias"].data<T>()[i % d];
    }
    if (out.has("count")) *out["count"].data<std::int64_t>() = in["x"].size();
    return {};
  }
};
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(Weighted, opgate::ops::WeightedCpu)

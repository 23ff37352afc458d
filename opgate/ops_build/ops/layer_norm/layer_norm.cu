#include "layer_norm.h"

#include "norms/normalize.cuh"

namespace opgate::ops::layer_norm {
namespace {

struct Cuda : ChecksEpsilon {
  using Norm = norms::Norm<true, false>;

  template <typename T>
  static auto workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    const std::int64_t c = in.size("c");
    return Norm::workspace<T>(workspace, c == 0 ? 0 : in["x"].size() / c, c);
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t c = in.size("c"), size = in["x"].size();
    if (size == 0) return {};
    auto rows = norms::Rows<T>::of(in, attributes, out, size / c, c);
    rows.bias = data_or_null<T>(in, "bias");
    return Norm::run(context, rows);
  }
};

}  // namespace
}  // namespace opgate::ops::layer_norm

OPGATE_CUDA_KERNEL(LayerNorm, opgate::ops::layer_norm::Cuda)

#include "layer_norm.h"

#include "kernel_toolkit/rows.cuh"

namespace opgate::ops::layer_norm {
namespace {

struct Cuda : ChecksEpsilon {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t c = in.size("c"), size = in["x"].size();
    if (size == 0) return {};
    const rows::Sums<T> sums{c, in["x"].data<T>(), data_or_null<T>(in, "residual")};
    const auto epsilon = static_cast<ComputeType<T>>(attributes.number("epsilon"));
    rows::normalize<T><<<blocks_for(size / c, 1), rows::kThreads, 0, stream_of(context)>>>(
        size / c, sums, 1, 1, epsilon, data_or_null<T>(in, "weight"), data_or_null<T>(in, "bias"), out["y"].data<T>(),
        data_or_null<T>(out, "sum"));
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::layer_norm

OPGATE_CUDA_KERNEL(LayerNorm, opgate::ops::layer_norm::Cuda)

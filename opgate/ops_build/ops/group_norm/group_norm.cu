#include "group_norm.h"

#include "kernel_toolkit/rows.cuh"

namespace opgate::ops::group_norm {
namespace {

struct Cuda : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t groups = attributes.integer("groups"), size = in["x"].size();
    if (size == 0) return {};
    const std::int64_t count = in.size("n") * groups, length = size / count, part = length / (in.size("c") / groups);
    const rows::Sums<T> sums{length, in["x"].data<T>(), data_or_null<T>(in, "residual")};
    const auto epsilon = static_cast<ComputeType<T>>(attributes.number("epsilon"));
    rows::normalize<T><<<blocks_for(count, 1), rows::kThreads, 0, stream_of(context)>>>(
        count, sums, groups, part, epsilon, data_or_null<T>(in, "weight"), data_or_null<T>(in, "bias"),
        out["y"].data<T>(), data_or_null<T>(out, "sum"));
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::group_norm

OPGATE_CUDA_KERNEL(GroupNorm, opgate::ops::group_norm::Cuda)

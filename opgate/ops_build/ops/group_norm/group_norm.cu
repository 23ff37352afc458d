#include "group_norm.h"

#include "norms/normalize.cuh"

namespace opgate::ops::group_norm {
namespace {

struct Cuda : Checked {
  using Norm = norms::Norm<true, true>;

  template <typename T>
  static auto workspace(Workspace& workspace, const Inputs& in, const Attributes& attributes) {
    const std::int64_t count = in.size("n") * attributes.integer("groups");
    return Norm::workspace<T>(workspace, count, count == 0 ? 0 : in["x"].size() / count);
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t groups = attributes.integer("groups"), size = in["x"].size();
    if (size == 0) return {};
    const std::int64_t count = in.size("n") * groups;
    auto rows = norms::Rows<T>::of(in, attributes, out, count, size / count);
    rows.bias = data_or_null<T>(in, "bias");
    rows.groups = groups;
    rows.part = rows.c / (in.size("c") / groups);
    return Norm::run(context, rows);
  }
};

}  // namespace
}  // namespace opgate::ops::group_norm

OPGATE_CUDA_KERNEL(GroupNorm, opgate::ops::group_norm::Cuda)

#include "rms_norm.h"

#include "norms/normalize.cuh"

namespace opgate::ops::rms_norm {
namespace {

struct Cuda : ChecksEpsilon {
  using Norm = norms::Norm<false, false>;

  template <typename T>
  static auto workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    const std::int64_t c = in.size("c");
    return Norm::workspace<T>(workspace, c == 0 ? 0 : in["x"].size() / c, c);
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t c = in.size("c"), size = in["x"].size();
    if (size == 0) return {};
    return Norm::run(context, norms::Rows<T>::of(in, attributes, out, size / c, c));
  }
};

}  // namespace
}  // namespace opgate::ops::rms_norm

OPGATE_CUDA_KERNEL(RMSNorm, opgate::ops::rms_norm::Cuda)

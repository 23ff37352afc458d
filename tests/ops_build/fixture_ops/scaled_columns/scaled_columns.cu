#include "kernel_toolkit/elementwise.cuh"
#include "scaled_columns.h"

namespace opgate::ops::scaled_columns {
namespace {

constexpr int kThreads = 128;

std::atomic<std::int64_t> preparations = 0;

__global__ void __launch_bounds__(kThreads)
    scale_weights(const float* weight, float scale, std::int64_t c, float* scaled) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < c) scaled[i] = weight[i] * scale;
}

__global__ void __launch_bounds__(kThreads)
    multiply(const float* x, const float* scaled, std::int64_t count, std::int64_t c, float* y) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) y[i] = x[i] * scaled[i % c];
}

__global__ void report(std::int64_t number, std::int64_t* prepared, std::int32_t* constant) {
  *prepared = number;
  *constant = 0;
}

class Cuda {
 public:
  Status prepare(const Node& node) { return prepared_.read(node, preparations); }

  static std::span<float> workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    return workspace.take<float>(in.size("c"));
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t c = in.size("c"), count = in["x"].size();
    if (prepared_.columns.value_or(c) != c) return Status::internal("the kernel was prepared for another size");
    const cudaStream_t stream = stream_of(context);
    report<<<1, 1, 0, stream>>>(prepared_.number, out["prepared"].data<std::int64_t>(),
                                out["constant"].data<std::int32_t>());
    OPGATE_RETURN_IF_ERROR(launched());
    if (count == 0) return {};
    float* const scaled = workspace(context.workspace(), in, attributes).data();
    scale_weights<<<blocks_for(c, kThreads), kThreads, 0, stream>>>(in["weight"].data<float>(), prepared_.scale, c,
                                                                    scaled);
    OPGATE_RETURN_IF_ERROR(launched());
    multiply<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(in["x"].data<float>(), scaled, count, c,
                                                                   out["y"].data<float>());
    return launched();
  }

 private:
  Prepared prepared_;
};

}  // namespace
}  // namespace opgate::ops::scaled_columns

OPGATE_CUDA_KERNEL(ScaledColumns, opgate::ops::scaled_columns::Cuda)

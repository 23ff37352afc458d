#include "three_interpolate.h"

#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::three_interpolate {
namespace {

constexpr int kThreads = 256;

/// A thread computes an element. Threads side by side have columns side by side. A neighbour that is no row of the
/// features adds nothing.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    interpolate(std::int64_t n, std::int64_t m, std::int64_t c, std::int64_t k, const T* __restrict__ features,
                const std::int32_t* __restrict__ idx, const T* __restrict__ weight, T* __restrict__ y) {
  using C = ComputeType<T>;
  const std::int64_t element = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (element >= m * c) return;
  const std::int64_t query = element / c, column = element - query * c;
  C sum = 0;
  for (std::int64_t i = query * k; i < (query + 1) * k; ++i) {
    const std::int32_t row = idx[i];
    if (row < 0 || row >= n) continue;
    sum += static_cast<C>(weight[i]) * static_cast<C>(features[row * c + column]);
  }
  y[element] = static_cast<T>(sum);
}

struct Cuda : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const std::int64_t m = in.size("m"), c = in.size("c");
    if (m * c == 0) return {};
    interpolate<<<blocks_for(m * c, kThreads), kThreads, 0, stream_of(context)>>>(
        in.size("n"), m, c, in.size("k"), in["features"].data<T>(), in["idx"].data<std::int32_t>(),
        in["weight"].data<T>(), out["y"].data<T>());
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::three_interpolate

OPGATE_CUDA_KERNEL(ThreeInterpolate, opgate::ops::three_interpolate::Cuda)

#include "three_interpolate.h"

#include "kernel_toolkit/divisor.h"
#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::three_interpolate {
namespace {

constexpr int kThreads = 256;

/// A thread computes `lanes` columns of a row. Threads side by side have columns side by side. A neighbour that is no
/// row of the features adds nothing.
template <int lanes, typename T, typename Index>
__global__ void __launch_bounds__(kThreads)
    interpolate(std::int64_t count, std::int64_t n, Divisor<Index> vectors, std::int64_t k,
                const T* __restrict__ features, const std::int32_t* __restrict__ idx, const T* __restrict__ weight,
                T* __restrict__ y) {
  using C = ComputeType<T>;
  using Vector = elementwise::Lanes<T, lanes>;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= count) return;
  const Index query = static_cast<Index>(thread) / vectors;
  const Index column = static_cast<Index>(thread) - query * vectors.number();
  C sums[lanes] = {};
  for (std::int64_t i = query * k; i < (query + 1) * k; ++i) {
    const std::int32_t row = idx[i];
    if (row < 0 || row >= n) continue;
    const C factor = static_cast<C>(weight[i]);
    const Vector from = reinterpret_cast<const Vector*>(features)[std::int64_t{row} * vectors.number() + column];
#pragma unroll
    for (int lane = 0; lane < lanes; ++lane) sums[lane] += factor * static_cast<C>(from.values[lane]);
  }
  Vector result;
#pragma unroll
  for (int lane = 0; lane < lanes; ++lane) result.values[lane] = static_cast<T>(sums[lane]);
  reinterpret_cast<Vector*>(y)[thread] = result;
}

struct Cuda : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    constexpr int lanes = elementwise::kBytes / sizeof(T);
    const T *const features = in["features"].data<T>(), *const y = out["y"].data<T>();
    if (in.size("c") % lanes == 0 && elementwise::aligned(features) && elementwise::aligned(y)) {
      launch<lanes, T>(stream_of(context), in, out);
    } else {
      launch<1, T>(stream_of(context), in, out);
    }
    return launched();
  }

 private:
  template <int lanes, typename T>
  static void launch(cudaStream_t stream, const Inputs& in, Outputs& out) {
    const std::int64_t vectors = in.size("c") / lanes, count = in.size("m") * vectors;
    if (count == 0) return;
    with_index(count, [&]<typename Index>(Index) {
      interpolate<lanes><<<blocks_for(count, kThreads), kThreads, 0, stream>>>(
          count, in.size("n"), Divisor<Index>(vectors), in.size("k"), in["features"].data<T>(),
          in["idx"].data<std::int32_t>(), in["weight"].data<T>(), out["y"].data<T>());
    });
  }
};

}  // namespace
}  // namespace opgate::ops::three_interpolate

OPGATE_CUDA_KERNEL(ThreeInterpolate, opgate::ops::three_interpolate::Cuda)

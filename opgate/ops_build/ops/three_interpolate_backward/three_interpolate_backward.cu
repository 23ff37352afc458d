#include "three_interpolate_backward.h"

#include "reductions/sorted.cuh"

namespace opgate::ops::three_interpolate_backward {
namespace {

using scatter_reduce::Sorted;

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

__device__ std::int64_t thread_index() { return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

/// The key of a neighbour is its row; n if it is none.
__global__ void __launch_bounds__(kThreads)
    find_keys(std::int64_t count, std::int64_t n, const std::int32_t* idx, std::uint32_t* keys, std::uint32_t* places) {
  const std::int64_t i = thread_index();
  if (i >= count) return;
  keys[i] = static_cast<std::uint32_t>(idx[i] >= 0 && idx[i] < n ? idx[i] : n);
  places[i] = static_cast<std::uint32_t>(i);
}

/// A thread computes an element. A partial sum adds few rows, so the error doesn't grow with their number.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    find_grad_features(std::int64_t n, std::int64_t c, std::uint32_t k, Sorted sorted, const T* __restrict__ grad_y,
                       const T* __restrict__ weight, T* __restrict__ grad_features) {
  using C = ComputeType<T>;
  constexpr std::int64_t kRowsTogether = 64;
  const std::int64_t element = thread_index();
  if (element >= n * c) return;
  const std::int64_t row = element / c, column = element - row * c;
  const KeyRange range = sorted.range(row);
  C total = 0;
  for (std::int64_t first = range.begin; first < range.end; first += kRowsTogether) {
    C part = 0;
    for (std::int64_t j = first; j < range.end && j < first + kRowsTogether; ++j) {
      const std::uint32_t place = sorted.rows[j];
      part += static_cast<C>(weight[place]) * static_cast<C>(grad_y[std::int64_t{place / k} * c + column]);
    }
    total += part;
  }
  grad_features[element] = static_cast<T>(total);
}

/// A warp computes the gradient of a weight.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    find_grad_weight(std::int64_t count, std::int64_t n, std::int64_t c, std::int64_t k, const T* __restrict__ grad_y,
                     const T* __restrict__ features, const std::int32_t* __restrict__ idx,
                     T* __restrict__ grad_weight) {
  using C = ComputeType<T>;
  const std::int64_t i = thread_index() / kWarp;
  if (i >= count) return;  // the whole warp
  const std::int32_t row = idx[i];
  C sum = 0;
  if (row >= 0 && row < n) {
    for (std::int64_t column = threadIdx.x % kWarp; column < c; column += kWarp) {
      sum += static_cast<C>(grad_y[i / k * c + column]) * static_cast<C>(features[row * c + column]);
    }
  }
  for (int bits = kWarp / 2; bits > 0; bits /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, bits);
  if (threadIdx.x % kWarp == 0) grad_weight[i] = static_cast<T>(sum);
}

struct Cuda : three_interpolate::Checked {
  template <typename T>
  static SortedKeys workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    return SortedKeys::take(workspace, in.size("m") * in.size("k"));
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n"), m = in.size("m"), c = in.size("c"), k = in.size("k"), count = m * k;
    const cudaStream_t stream = stream_of(context);
    const SortedKeys sorting = workspace<T>(context.workspace(), in, attributes);
    const T *const grad_y = in["grad_y"].data<T>(), *const weight = in["weight"].data<T>();
    const auto* const idx = in["idx"].data<std::int32_t>();
    if (count > 0) {
      find_keys<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(count, n, idx, sorting.keys.data(),
                                                                      sorting.values.data());
      OPGATE_RETURN_IF_ERROR(launched());
      OPGATE_RETURN_IF_ERROR(sorting.sort(context, n));
      find_grad_weight<<<blocks_for(count, kThreads / kWarp), kThreads, 0, stream>>>(
          count, n, c, k, grad_y, in["features"].data<T>(), idx, out["grad_weight"].data<T>());
      OPGATE_RETURN_IF_ERROR(launched());
    }
    if (n * c == 0) return {};
    find_grad_features<<<blocks_for(n * c, kThreads), kThreads, 0, stream>>>(
        n, c, static_cast<std::uint32_t>(k), Sorted::of(sorting), grad_y, weight, out["grad_features"].data<T>());
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::three_interpolate_backward

OPGATE_CUDA_KERNEL(ThreeInterpolateBackward, opgate::ops::three_interpolate_backward::Cuda)

#include "grid_cluster.h"

#include "formula.h"
#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::grid_cluster {
namespace {

constexpr int kThreads = 256;
constexpr int kMostBlocks = 256;

/// A block finds the bounds of some rows and writes them to low[block] and high[block], rows of d numbers. `lows` and
/// `highs` are the points, or the bounds that blocks have found. A NaN doesn't count.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    find_bounds(std::int64_t rows, std::int64_t d, const T* lows, const T* highs, T* low, T* high) {
  __shared__ T least[kThreads], most[kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  for (std::int64_t axis = 0; axis < d; ++axis) {
    T own_least = static_cast<T>(INFINITY), own_most = static_cast<T>(-INFINITY);
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
    for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + thread; row < rows; row += step) {
      const T one = lows[row * d + axis], other = highs[row * d + axis];
      if (one < own_least) own_least = one;
      if (other > own_most) own_most = other;
    }
    least[thread] = own_least;
    most[thread] = own_most;
    __syncthreads();
    for (int half = kThreads / 2; half > 0; half /= 2) {
      if (thread < half) {
        if (least[thread + half] < least[thread]) least[thread] = least[thread + half];
        if (most[thread + half] > most[thread]) most[thread] = most[thread + half];
      }
      __syncthreads();
    }
    if (thread == 0) {
      low[blockIdx.x * d + axis] = least[0];
      high[blockIdx.x * d + axis] = most[0];
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    find_cells(std::int64_t n, std::int64_t d, const T* __restrict__ pos, const T* __restrict__ size,
               const T* __restrict__ start, const T* __restrict__ end, std::int64_t* cluster) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= n) return;
  std::int64_t cell = 0, stride = 1;
  for (std::int64_t axis = 0; axis < d; ++axis) {
    cell = plus(cell, times(truncated((pos[row * d + axis] - start[axis]) / size[axis]), stride));
    stride = times(stride, cells(start[axis], end[axis], size[axis]));
  }
  cluster[row] = cell;
}

struct Cuda {
  template <typename T>
  struct Memory {
    std::span<T> low, high;  ///< of the blocks, and of all points
  };

  template <typename T>
  static Memory<T> workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    const std::int64_t count = (kMostBlocks + 1) * in.size("d");
    return {workspace.take<T>(count), workspace.take<T>(count)};
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n"), d = in.size("d");
    if (n == 0) return {};
    const Memory<T> memory = workspace<T>(context.workspace(), in, attributes);
    const T* const pos = in["pos"].data<T>();
    T *const low = memory.low.data() + kMostBlocks * d, *const high = memory.high.data() + kMostBlocks * d;
    if (!in.has("start") || !in.has("end")) {
      const unsigned blocks = std::min<unsigned>(blocks_for(n, kThreads), kMostBlocks);
      find_bounds<<<blocks, kThreads, 0, stream_of(context)>>>(n, d, pos, pos, memory.low.data(), memory.high.data());
      OPGATE_RETURN_IF_ERROR(launched());
      find_bounds<<<1, kThreads, 0, stream_of(context)>>>(static_cast<std::int64_t>(blocks), d,
                                                          static_cast<const T*>(memory.low.data()),
                                                          static_cast<const T*>(memory.high.data()), low, high);
      OPGATE_RETURN_IF_ERROR(launched());
    }
    find_cells<<<blocks_for(n, kThreads), kThreads, 0, stream_of(context)>>>(
        n, d, pos, in["size"].data<T>(), in.has("start") ? in["start"].data<T>() : low,
        in.has("end") ? in["end"].data<T>() : high, out["cluster"].data<std::int64_t>());
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::grid_cluster

OPGATE_CUDA_KERNEL(GridCluster, opgate::ops::grid_cluster::Cuda)

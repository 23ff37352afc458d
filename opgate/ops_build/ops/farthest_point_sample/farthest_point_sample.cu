#include "farthest_point_sample.h"

#include "kernel_toolkit/elementwise.cuh"
#include "points/distance.h"
#include "points/segments.cuh"

namespace opgate::ops::farthest_point_sample {
namespace {

using knn_query::add_square;
using knn_query::Range;

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr unsigned kWholeWarp = 0xffffffffu;

/// A segment of so few points is sampled by few threads, which wait less for one another.
constexpr std::int64_t kFewPoints = 2048;

template <typename T, typename I>
struct Sampling {
  knn_query::Ends<I> ends;  ///< query_ends are the ends of the samples
  std::int64_t d;
  const T* xyz;
  T* closest;  ///< the squared distance to the nearest sample; -1: not finite; -2: is a sample
  std::int32_t* idx;
  std::int64_t* count;

  /// The samples of a segment, within the points.
  __device__ Range samples_of(std::int64_t segment) const {
    const std::int64_t begin = segment ? ends.within(ends.query_ends[segment - 1], ends.n) : 0;
    return {begin, ends.within(ends.query_ends[segment], ends.n)};
  }
};

/// Wrong ends of segments leave places without a sample.
template <typename T, typename I>
__global__ void __launch_bounds__(kThreads) clear(Sampling<T, I> sampling) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < sampling.ends.n) sampling.idx[i] = -1;
  if (i == 0) *sampling.count = sampling.ends.segments ? sampling.samples_of(sampling.ends.segments - 1).end : 0;
}

/// A point and its distance.
template <typename T>
struct Far {
  T d2;
  std::int32_t row;

  __device__ bool before(const Far& other) const { return d2 > other.d2 || (d2 == other.d2 && row < other.row); }
};

template <typename T>
__device__ Far<T> farther(const Far<T>& a, const Far<T>& b) {
  return b.before(a) ? b : a;
}

template <typename T>
__device__ Far<T> farthest_of_warp(Far<T> own) {
  for (int bits = kWarp / 2; bits > 0; bits /= 2) {
    const Far<T> other{__shfl_xor_sync(kWholeWarp, own.d2, bits), __shfl_xor_sync(kWholeWarp, own.row, bits)};
    own = farther(own, other);
  }
  return own;
}

/// A thread keeps the distances of so many points in registers, and those of others in memory.
template <typename T>
constexpr int kHeld = sizeof(T) == 4 ? 16 : 8;

/// A block samples a segment. A thread looks at the points that are `threads` rows apart. D is the number of
/// coordinates, or 0 for any.
template <int threads, int D, typename T, typename I>
__global__ void __launch_bounds__(threads) sample(Sampling<T, I> sampling) {
  constexpr int kWarps = threads / kWarp;
  __shared__ Far<T> partial[2][kWarps];
  const std::int64_t d = D ? D : sampling.d;
  for (std::int64_t segment = blockIdx.x; segment < sampling.ends.segments; segment += gridDim.x) {
    const Range points = sampling.ends.points_of(segment), samples = sampling.samples_of(segment);
    if (points.begin >= points.end) continue;
    T held[kHeld<T>];
    // Calls use(row, distance) for each point of the thread, with a reference to its distance.
    const auto each = [&](const auto& use) {
      const std::int64_t first = points.begin + threadIdx.x;
#pragma unroll
      for (int k = 0; k < kHeld<T>; ++k) {
        if (first + k * threads < points.end) use(first + k * threads, held[k]);
      }
      for (std::int64_t row = first + kHeld<T> * threads; row < points.end; row += threads)
        use(row, sampling.closest[row]);
    };
    each([&](std::int64_t row, T& closest) {
      T zero = 0;
      for (std::int64_t axis = 0; axis < d; ++axis) zero += sampling.xyz[row * d + axis] * T(0);
      closest = zero == 0 ? static_cast<T>(INFINITY) : T(-1);
    });
    std::int64_t chosen = points.begin;
    for (std::int64_t place = samples.begin; place < samples.end; ++place) {
      if (place - samples.begin >= points.end - points.begin) break;
      if (threadIdx.x == 0) sampling.idx[place] = static_cast<std::int32_t>(chosen);
      const T* const at = sampling.xyz + chosen * d;
      Far<T> own{T(-2), static_cast<std::int32_t>(sampling.ends.n)};
      each([&](std::int64_t row, T& closest) {
        T d2 = 0;
        for (std::int64_t axis = 0; axis < d; ++axis) d2 = add_square(d2, sampling.xyz[row * d + axis] - at[axis]);
        if (d2 < closest) closest = d2;
        if (row == chosen) closest = -2;
        own = farther(own, {closest, static_cast<std::int32_t>(row)});
      });
      own = farthest_of_warp(own);
      Far<T>* const of_warps = partial[place % 2];  // nobody writes to it before all have come to the next barrier
      if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = own;
      __syncthreads();
      chosen = farthest_of_warp(of_warps[threadIdx.x % kWarps]).row;
    }
    __syncthreads();  // the next segment writes to `partial` again
  }
}

struct Cuda : Checked {
  template <typename T>
  struct Memory {
    std::span<T> closest;
  };

  template <typename T, typename I>
  static Memory<T> workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    return {workspace.take<T>(in.size("n"))};
  }

  template <typename T, typename I>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    Sampling<T, I> sampling{};
    sampling.ends = {in.size("n"), in.size("b"), in["offset"].data<I>(), in["new_offset"].data<I>()};
    sampling.d = in.size("d");
    sampling.xyz = in["xyz"].data<T>();
    sampling.closest = workspace<T, I>(context.workspace(), in, attributes).closest.data();
    sampling.idx = out["idx"].data<std::int32_t>();
    sampling.count = out.device_size("v");
    const cudaStream_t stream = stream_of(context);
    clear<<<blocks_for(std::max<std::int64_t>(sampling.ends.n, 1), kThreads), kThreads, 0, stream>>>(sampling);
    OPGATE_RETURN_IF_ERROR(launched());
    if (sampling.ends.n == 0 || sampling.ends.segments == 0) return {};
    if (sampling.d == 3)
      launch<3>(sampling, stream);
    else
      launch<0>(sampling, stream);
    return launched();
  }

 private:
  template <int D, typename T, typename I>
  static void launch(const Sampling<T, I>& sampling, cudaStream_t stream) {
    const unsigned blocks = blocks_for(sampling.ends.segments, 1);
    if (sampling.ends.n / sampling.ends.segments <= kFewPoints) {
      sample<128, D><<<blocks, 128, 0, stream>>>(sampling);
    } else {
      sample<1024, D><<<blocks, 1024, 0, stream>>>(sampling);
    }
  }
};

}  // namespace
}  // namespace opgate::ops::farthest_point_sample

OPGATE_CUDA_KERNEL(FarthestPointSample, opgate::ops::farthest_point_sample::Cuda)

// Elementwise kernels on CUDA. A thread loads 16 bytes of each input.
#pragma once

#include "cuda.h"
#include "elementary.h"
#include "elementwise_kernel.h"

namespace opgate {

/// The Status of the kernel launch before.
inline Status launched() { return cuda::status(cudaGetLastError(), "launching a kernel"); }

inline cudaStream_t stream_of(const Context& context) { return static_cast<cudaStream_t>(context.stream()); }

/// The number of blocks of `threads` threads that give `work` threads, at least 1.
inline unsigned blocks_for(std::int64_t work, int threads) {
  constexpr std::int64_t kMost = 0x7fffffff;
  return static_cast<unsigned>(std::clamp<std::int64_t>((work + threads - 1) / threads, 1, kMost));
}

/// A float that is computed with the fast approximations of the GPU. Their error, about 2^-21, is lost when a result is
/// rounded to 16 bits.
struct FastFloat {
  float value;

  FastFloat() = default;
  template <typename Number>
  OPGATE_HOST_DEVICE constexpr explicit FastFloat(Number number) : value(static_cast<float>(number)) {}

  friend OPGATE_HOST_DEVICE FastFloat operator+(FastFloat a, FastFloat b) { return FastFloat(a.value + b.value); }
  friend OPGATE_HOST_DEVICE FastFloat operator-(FastFloat a, FastFloat b) { return FastFloat(a.value - b.value); }
  friend OPGATE_HOST_DEVICE FastFloat operator*(FastFloat a, FastFloat b) { return FastFloat(a.value * b.value); }
  friend __device__ FastFloat operator/(FastFloat a, FastFloat b) {
    // __fdividef gives 0 for a greater divisor.
    const float scale = fabsf(b.value) > 0x1p126f ? 0.25f : 1.0f;
    return FastFloat(__fdividef(scale * a.value, scale * b.value));
  }
  // operator<=> would call a function of the host's standard library.
  friend OPGATE_HOST_DEVICE bool operator<(FastFloat a, FastFloat b) { return a.value < b.value; }
  friend OPGATE_HOST_DEVICE bool operator>(FastFloat a, FastFloat b) { return a.value > b.value; }
  friend OPGATE_HOST_DEVICE bool operator<=(FastFloat a, FastFloat b) { return a.value <= b.value; }
  friend OPGATE_HOST_DEVICE bool operator>=(FastFloat a, FastFloat b) { return a.value >= b.value; }
};

__device__ inline FastFloat exp_in_range(FastFloat x) { return FastFloat(__expf(x.value)); }
__device__ inline FastFloat gaussian(FastFloat x) { return FastFloat(__expf(-0.5f * x.value * x.value)); }
__device__ inline FastFloat normal_cdf(FastFloat x) { return FastFloat(normal_cdf(x.value)); }
__device__ inline FastFloat arcsinh(FastFloat x) { return FastFloat(arcsinh(x.value)); }
__device__ inline FastFloat log_of_normal(FastFloat x) { return FastFloat(log_of_normal(x.value)); }

namespace elementwise {

/// The type in which CUDA kernels compute with T, if `Narrow` is that for 16-bit types.
template <typename T, typename Narrow>
using DeviceComputeType = std::conditional_t<std::is_same_v<ComputeType<T>, T>, T, Narrow>;

template <typename T>
__device__ T rounded(FastFloat value) {
  return static_cast<T>(value.value);
}
template <typename T, typename V>
__device__ T rounded(V value) {
  return static_cast<T>(value);
}

inline constexpr int kThreads = 256;
inline constexpr int kBytes = 16;

template <typename T, int lanes>
struct alignas(sizeof(T) * lanes) Lanes {
  T values[lanes];
};

/// A vector behind aligned memory, by its number.
template <int lanes, typename T>
__device__ Lanes<T, lanes> load(const T* from, std::int64_t vector = 0) {
  return reinterpret_cast<const Lanes<T, lanes>*>(from)[vector];
}

template <typename T, int lanes>
__device__ void store(T* to, std::int64_t vector, const Lanes<T, lanes>& values) {
  reinterpret_cast<Lanes<T, lanes>*>(to)[vector] = values;
}

/// The outputs. Each thread writes the elements that it has computed.
template <typename T, std::size_t count>
struct Targets {
  T* pointers[count];

  /// Computes the elements of a thread, each from a value of every input.
  template <int lanes, typename C, typename Function, typename... Vectors>
  __device__ void write_lanes(std::int64_t thread, const Function& function, Vectors... loaded) const {
    Lanes<T, lanes> results[count];
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
      put(function(static_cast<C>(loaded.values[i])...), [&](std::size_t k) -> T& { return results[k].values[i]; });
    }
    for (std::size_t k = 0; k < count; ++k) reinterpret_cast<Lanes<T, lanes>*>(pointers[k])[thread] = results[k];
  }

  /// Writes what the function gave for element i.
  template <typename Values>
  __device__ void write(std::int64_t i, const Values& values) const {
    put(values, [&](std::size_t k) -> T& { return pointers[k][i]; });
  }

 private:
  template <std::size_t k = 0, typename Values, typename Place>
  static __device__ void put(const Values& values, const Place& place) {
    place(k) = rounded<T>(result_of<k>(values));
    if constexpr (k + 1 < count) put<k + 1>(values, place);
  }
};

template <int lanes, typename C, typename Outputs, typename Function, typename... In>
__global__ void __launch_bounds__(kThreads)
    map_lanes(std::int64_t count, Outputs out, Function function, const In*... in) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t first = thread * lanes;
  if (first + lanes <= count) {
    // The vectors are parameters by value, because the compiler then loads each of them with one instruction.
    out.template write_lanes<lanes, C>(thread, function, reinterpret_cast<const Lanes<In, lanes>*>(in)[thread]...);
  } else {
    for (std::int64_t i = first; i < count; ++i) out.write(i, function(static_cast<C>(in[i])...));
  }
}

inline bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % kBytes == 0; }

}  // namespace elementwise

/// out[k][i] = result k of function(in[i]...) for `count` elements, on the stream of the call. 16-bit types are
/// computed as `Narrow`, others as themselves. operator() of `function` must be OPGATE_HOST_DEVICE.
template <typename T, typename Narrow = float, std::size_t results, typename Function,
          std::convertible_to<const T*>... In>
Status map_elements(Context& context, std::int64_t count, const std::array<T*, results>& out, Function function,
                    In... in) {
  using namespace elementwise;
  if (count == 0) return {};
  using C = DeviceComputeType<T, Narrow>;
  constexpr int lanes = kBytes / sizeof(T);
  Targets<T, results> targets;
  bool together = (aligned(in) && ...);
  for (std::size_t k = 0; k < results; ++k) {
    targets.pointers[k] = out[k];
    together = together && aligned(out[k]);
  }
  if (together) {
    map_lanes<lanes, C><<<blocks_for((count + lanes - 1) / lanes, kThreads), kThreads, 0, stream_of(context)>>>(
        count, targets, function, static_cast<const T*>(in)...);
  } else {
    map_lanes<1, C><<<blocks_for(count, kThreads), kThreads, 0, stream_of(context)>>>(count, targets, function,
                                                                                      static_cast<const T*>(in)...);
  }
  return launched();
}

template <typename T, typename Narrow = float, typename Function, std::convertible_to<const T*>... In>
Status map_elements(Context& context, std::int64_t count, T* out, Function function, In... in) {
  return map_elements<T, Narrow>(context, count, std::array<T*, 1>{out}, function, in...);
}

template <typename Narrow>
struct CudaLoop {
  template <typename T, std::size_t results, typename... Arguments>
  static Status run(Context& context, std::int64_t count, const std::array<T*, results>& out,
                    Arguments&&... arguments) {
    return map_elements<T, Narrow>(context, count, out, std::forward<Arguments>(arguments)...);
  }
};

/// The kernel of an elementwise op.
template <typename Formula>
using CudaElementwise = ElementwiseKernel<Formula, CudaLoop<float>>;

/// The same for OPGATE_FAST_ELEMENTWISE: it computes 16-bit types as FastFloat.
template <typename Formula>
using FastCudaElementwise = ElementwiseKernel<Formula, CudaLoop<FastFloat>>;

}  // namespace opgate

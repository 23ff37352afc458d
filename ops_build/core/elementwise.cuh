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

namespace elementwise {

inline constexpr int kThreads = 256;
inline constexpr int kBytes = 16;

template <typename T, int lanes>
struct alignas(sizeof(T) * lanes) Lanes {
  T values[lanes];
};

template <int lanes, typename T, typename Function, typename... In>
__global__ void __launch_bounds__(kThreads) run(std::int64_t count, T* out, Function function, const In*... in) {
  using C = ComputeType<T>;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t first = thread * lanes;
  if (first + lanes <= count) {
    // The vectors are parameters by value, because the compiler then loads each of them with one instruction.
    const auto apply = [&](Lanes<In, lanes>... loaded) {
      Lanes<T, lanes> result;
#pragma unroll
      for (int i = 0; i < lanes; ++i) result.values[i] = static_cast<T>(function(static_cast<C>(loaded.values[i])...));
      reinterpret_cast<Lanes<T, lanes>*>(out)[thread] = result;
    };
    apply(reinterpret_cast<const Lanes<In, lanes>*>(in)[thread]...);
  } else {
    for (std::int64_t i = first; i < count; ++i) out[i] = static_cast<T>(function(static_cast<C>(in[i])...));
  }
}

inline bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % kBytes == 0; }

}  // namespace elementwise

/// out[i] = function(in[i]...) for `count` elements, computed in ComputeType<T>, on the stream of the call. operator()
/// of `function` must be OPGATE_HOST_DEVICE.
template <typename T, typename Function, std::convertible_to<const T*>... In>
Status map_elements(Context& context, std::int64_t count, T* out, Function function, In... in) {
  using namespace elementwise;
  if (count == 0) return {};
  constexpr int lanes = kBytes / sizeof(T);
  if ((aligned(out) && ... && aligned(in))) {
    run<lanes><<<blocks_for((count + lanes - 1) / lanes, kThreads), kThreads, 0, stream_of(context)>>>(
        count, out, function, static_cast<const T*>(in)...);
  } else {
    run<1><<<blocks_for(count, kThreads), kThreads, 0, stream_of(context)>>>(count, out, function,
                                                                             static_cast<const T*>(in)...);
  }
  return launched();
}

struct CudaLoop {
  template <typename... Arguments>
  static Status run(Arguments&&... arguments) {
    return map_elements(std::forward<Arguments>(arguments)...);
  }
};

/// The kernel of an elementwise op: OPGATE_CUDA_KERNEL(Tag, opgate::CudaElementwise<Formula>).
template <typename Formula>
using CudaElementwise = ElementwiseKernel<Formula, CudaLoop>;

}  // namespace opgate

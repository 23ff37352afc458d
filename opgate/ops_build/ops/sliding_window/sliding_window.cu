#include "sliding_window.h"

#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::sliding_window {
namespace {

constexpr int kThreads = 256;

/// A thread reads a window. Windows that overlap are in the cache.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    read_windows(std::int64_t count, std::int64_t windows, std::int64_t t, std::int64_t size, std::int64_t step,
                 double ddof, const T* __restrict__ x, Written<T> written) {
  const std::int64_t apart = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += apart) {
    const T* const values = x + i / windows * t + i % windows * step;
    double sum = 0;
    T least = values[0], greatest = values[0];
    for (std::int64_t k = 0; k < size; ++k) {
      sum += static_cast<double>(values[k]);
      least = lesser(least, values[k]);
      greatest = greater(greatest, values[k]);
    }
    const double mean = sum / static_cast<double>(size);
    double squares = 0;
    for (std::int64_t k = 0; k < size; ++k) {
      const double distance = static_cast<double>(values[k]) - mean;
      squares += distance * distance;
    }
    written.put(i, {static_cast<double>(size), mean, squares, least, greatest}, ddof);
  }
}

struct Cuda {
  static Status check(const Attributes& attributes, const KnownSizes&) { return check_attributes(attributes); }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t count = out["mean"].size();
    if (count == 0) return {};
    read_windows<T><<<blocks_for(count, kThreads), kThreads, 0, stream_of(context)>>>(
        count, out["mean"].dim(1), in.size("t"), attributes.integer("size"), attributes.integer("step"),
        static_cast<double>(attributes.integer("ddof")), in["x"].data<T>(), outputs_of<T>(out));
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::sliding_window

OPGATE_CUDA_KERNEL(SlidingWindow, opgate::ops::sliding_window::Cuda)

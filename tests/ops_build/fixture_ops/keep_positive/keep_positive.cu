// One thread is enough: this tests how an adapter handles a count that stays on the device.
#include "keep_positive.h"
#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops {
namespace {

template <typename T>
__global__ void keep(std::int64_t n, const T* x, T* values, std::int64_t* indices, std::int64_t* scratch,
                     std::int64_t* kept) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (x[i] > T{0}) scratch[count++] = i;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] = x[scratch[i]];
    indices[i] = scratch[i];
  }
  *kept = count;
}

struct KeepPositiveCuda {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const Tensor& x = in["x"];
    keep<T><<<1, 1, 0, stream_of(context)>>>(x.size(), x.data<T>(), out["values"].data<T>(),
                                             out["indices"].data<std::int64_t>(),
                                             context.scratch<std::int64_t>(x.size()).data(), out.device_size("v"));
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops

OPGATE_CUDA_KERNEL(KeepPositive, opgate::ops::KeepPositiveCuda)

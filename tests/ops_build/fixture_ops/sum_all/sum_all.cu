// This tests how an adapter handles a variadic input.
#include "kernel_toolkit/elementwise.cuh"
#include "sum_all.h"

namespace opgate::ops {
namespace {

struct Sum {
  template <typename C>
  OPGATE_HOST_DEVICE C operator()(C a, C b) const {
    return a + b;
  }
};

struct SumAllCuda {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const MutableTensor& y = out["y"];
    if (y.size() == 0) return {};
    OPGATE_RETURN_IF_ERROR(cuda::status(
        cudaMemsetAsync(y.raw(), 0, static_cast<std::size_t>(y.size()) * sizeof(T), stream_of(context)), "clearing"));
    for (const Tensor* x : in.all("xs")) {
      OPGATE_RETURN_IF_ERROR(map_elements<T>(context, y.size(), y.data<T>(), Sum(), y.data<T>(), x->data<T>()));
    }
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops

OPGATE_CUDA_KERNEL(SumAll, opgate::ops::SumAllCuda)

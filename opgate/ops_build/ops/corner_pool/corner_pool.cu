#include "corner_pool.h"

#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::corner_pool {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

template <typename T>
using Wide = std::conditional_t<sizeof(T) == 2, float, T>;

/// A thread computes a column of a plane.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    pool_columns(const T* x, T* y, std::int64_t planes, std::int64_t h, std::int64_t w, bool up) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= planes * w) return;
  const std::int64_t first = i / w * h * w + i % w;
  Wide<T> most{};
  for (std::int64_t row = 0; row < h; ++row) {
    const std::int64_t at = first + (up ? h - 1 - row : row) * w;
    const auto value = static_cast<Wide<T>>(x[at]);
    most = row == 0 ? value : greater(most, value);
    y[at] = static_cast<T>(most);
  }
}

/// A warp computes a row, a warp's width at a time.
template <typename T>
__global__ void __launch_bounds__(kThreads) pool_rows(const T* x, T* y, std::int64_t count, std::int64_t w, bool left) {
  const std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (row >= count) return;  // the whole warp
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  auto most = static_cast<Wide<T>>(x[row * w + (left ? w - 1 : 0)]);  // of all before
  for (std::int64_t begin = 0; begin < w; begin += kWarp) {
    const std::int64_t column = begin + lane < w ? begin + lane : w - 1;  // idle lanes repeat the last one
    const std::int64_t at = row * w + (left ? w - 1 - column : column);
    auto value = greater(most, static_cast<Wide<T>>(x[at]));
    for (int step = 1; step < kWarp; step *= 2) {
      const auto before = __shfl_up_sync(kWholeWarp, value, static_cast<unsigned>(step));
      if (lane >= step) value = greater(before, value);
    }
    if (begin + lane < w) y[at] = static_cast<T>(value);
    most = __shfl_sync(kWholeWarp, value, kWarp - 1);
  }
}

struct Cuda {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Mode mode = Mode::of(attributes);
    const std::int64_t planes = in.size("n") * in.size("c"), h = in.size("h"), w = in.size("w");
    if (planes == 0 || h == 0 || w == 0) return {};
    const T* const x = in["x"].data<T>();
    T* const y = out["y"].data<T>();
    if (mode.vertical) {
      const unsigned blocks = blocks_for(planes * w, kThreads);
      pool_columns<T><<<blocks, kThreads, 0, stream_of(context)>>>(x, y, planes, h, w, mode.backwards);
    } else {
      const unsigned blocks = blocks_for(planes * h, kThreads / kWarp);
      pool_rows<T><<<blocks, kThreads, 0, stream_of(context)>>>(x, y, planes * h, w, mode.backwards);
    }
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::corner_pool

OPGATE_CUDA_KERNEL(CornerPool, opgate::ops::corner_pool::Cuda)

#include <cmath>

#include "kernel_toolkit/elementwise.cuh"
#include "rotary_embedding.h"

namespace opgate::ops::rotary_embedding {
namespace {

constexpr int kThreads = 256;

/// A thread writes two numbers of a head: a pair that is rotated, or two that are not.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    rotate(Layout layout, std::int64_t count, std::int64_t threads_of_head, bool interleaved, const T* x, const T* cos,
           const T* sin, const std::int64_t* positions, T* y) {
  using C = ComputeType<T>;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= count) return;
  const std::int64_t i = thread % threads_of_head, row = thread / threads_of_head;
  const std::int64_t token = row / layout.heads, begin = layout.begin(token, row % layout.heads);
  const std::int64_t half = layout.half();
  if (i >= half) {
    for (std::int64_t k = 2 * i; k < 2 * i + 2 && k < layout.head_size; ++k) y[begin + k] = x[begin + k];
    return;
  }
  const std::int64_t position = positions ? positions[token] : token;
  const std::int64_t first = begin + (interleaved ? 2 * i : i), second = interleaved ? first + 1 : first + half;
  if (position < 0 || position >= layout.positions) {  // nobody can report it without waiting
    y[first] = y[second] = static_cast<T>(NAN);
    return;
  }
  const C c = static_cast<C>(cos[position * half + i]), s = static_cast<C>(sin[position * half + i]);
  const C a = static_cast<C>(x[first]), b = static_cast<C>(x[second]);
  y[first] = static_cast<T>(c * a - s * b);
  y[second] = static_cast<T>(s * a + c * b);
}

struct Cuda : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    Layout layout;
    OPGATE_RETURN_IF_ERROR(Layout::of(in, attributes, layout));
    if (out["y"].size() == 0) return {};
    const std::int64_t threads_of_head = (layout.head_size + 1) / 2;
    const std::int64_t count = layout.batch * layout.sequence * layout.heads * threads_of_head;
    rotate<T><<<blocks_for(count, kThreads), kThreads, 0, stream_of(context)>>>(
        layout, count, threads_of_head, attributes.boolean("interleaved"), in["x"].data<T>(), in["cos_cache"].data<T>(),
        in["sin_cache"].data<T>(), data_or_null<std::int64_t>(in, "position_ids"), out["y"].data<T>());
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::rotary_embedding

OPGATE_CUDA_KERNEL(RotaryEmbedding, opgate::ops::rotary_embedding::Cuda)

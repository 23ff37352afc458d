#include <cmath>

#include "kernel_toolkit/divisor.h"
#include "kernel_toolkit/elementwise.cuh"
#include "rotary_embedding.h"

namespace opgate::ops::rotary_embedding {
namespace {

constexpr int kThreads = 256;

/// A thread computes so many heads with the angles that it has loaded, if enough threads are left then.
constexpr int kHeads = 4;
constexpr std::int64_t kEnoughThreads = 1 << 15;

using elementwise::load, elementwise::store;

template <typename T, int lanes>
using Vector = elementwise::Lanes<T, lanes>;

/// Rotates `lanes` pairs: (first[i], second[i]), or if interleaved the neighbours of the two vectors.
template <bool interleaved, typename T, int lanes>
__device__ void rotate_pairs(Vector<T, lanes>& first, Vector<T, lanes>& second, const Vector<T, lanes>& cos,
                             const Vector<T, lanes>& sin) {
  using C = ComputeType<T>;
  const auto number = [&](int i) -> T& { return i < lanes ? first.values[i] : second.values[i - lanes]; };
#pragma unroll
  for (int i = 0; i < lanes; ++i) {
    T &x = number(interleaved ? 2 * i : i), &y = number(interleaved ? 2 * i + 1 : i + lanes);
    const C a = static_cast<C>(x), b = static_cast<C>(y);
    const C c = static_cast<C>(cos.values[i]), s = static_cast<C>(sin.values[i]);
    x = static_cast<T>(c * a - s * b);
    y = static_cast<T>(s * a + c * b);
  }
}

/// A thread writes `2 * lanes` numbers of each of `heads` heads of a token: pairs that are rotated, or numbers that are
/// not. Threads side by side have numbers side by side, then tokens.
template <typename T, int lanes, int heads, bool interleaved, typename Index>
__global__ void __launch_bounds__(kThreads)
    rotate(Layout layout, std::int64_t count, Divisor<Index> threads_of_head, Divisor<Index> tokens,
           Divisor<Index> sequence, const T* __restrict__ x, const T* __restrict__ cos, const T* __restrict__ sin,
           const std::int64_t* __restrict__ positions, T* __restrict__ y) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= count) return;
  const Index row = static_cast<Index>(thread) / threads_of_head;
  const Index i = static_cast<Index>(thread) - row * threads_of_head.number();
  const Index group = row / tokens, token = row - group * tokens.number();
  const Index image = token / sequence;
  const std::int64_t half = layout.half();
  const std::int64_t first_head = std::int64_t{group} * heads;
  const std::int64_t begin = image * layout.heads * layout.sequence * layout.head_size +
                             (token - image * sequence.number()) * layout.sequence_step + first_head * layout.head_step;
  if (i >= half / lanes) {
    const std::int64_t first = layout.rotated + 2 * lanes * (i - half / lanes);
    for (std::int64_t head = 0; head < heads && first_head + head < layout.heads; ++head) {
      for (std::int64_t at = first; at < first + 2 * lanes && at < layout.head_size; at += lanes) {
        const std::int64_t place = begin + head * layout.head_step + at;
        store(y + place, 0, load<lanes>(x + place));
      }
    }
    return;
  }
  const std::int64_t position = positions ? positions[token] : token;
  const bool known = position >= 0 && position < layout.positions;  // nobody can report another one without waiting
  const std::int64_t angle = known ? position * half + i * lanes : 0;
  Vector<T, lanes> c{}, s{}, first[heads], second[heads];
  if (known) {
    c = load<lanes>(cos + angle);
    s = load<lanes>(sin + angle);
  }
  const std::int64_t one = begin + (interleaved ? 2 * lanes : lanes) * i, other = one + (interleaved ? lanes : half);
#pragma unroll
  for (int head = 0; head < heads; ++head) {
    if (first_head + head >= layout.heads) continue;
    first[head] = load<lanes>(x + one + head * layout.head_step);
    second[head] = load<lanes>(x + other + head * layout.head_step);
  }
#pragma unroll
  for (int head = 0; head < heads; ++head) {
    if (first_head + head >= layout.heads) continue;
    rotate_pairs<interleaved>(first[head], second[head], c, s);
    if (!known) {
      for (int k = 0; k < lanes; ++k) first[head].values[k] = second[head].values[k] = static_cast<T>(NAN);
    }
    store(y + one + head * layout.head_step, 0, first[head]);
    store(y + other + head * layout.head_step, 0, second[head]);
  }
}

template <typename T>
struct Call {
  Layout layout;
  bool interleaved;
  const T *x, *cos, *sin;
  const std::int64_t* positions;
  T* y;

  /// Whether vectors of `lanes` numbers lie in one head and in one half.
  bool has_vectors(std::int64_t lanes) const {
    using elementwise::aligned;
    for (const std::int64_t size : {layout.half(), layout.head_size, layout.head_step, layout.sequence_step}) {
      if (size % lanes != 0) return false;
    }
    return aligned(x) && aligned(cos) && aligned(sin) && aligned(y);
  }

  template <int lanes, int heads>
  void launch(cudaStream_t stream) const {
    const std::int64_t threads_of_head = (layout.head_size + 2 * lanes - 1) / (2 * lanes);
    const std::int64_t tokens = layout.batch * layout.sequence;
    const std::int64_t count = threads_of_head * tokens * ((layout.heads + heads - 1) / heads);
    if constexpr (heads > 1) {
      if (count < kEnoughThreads) return launch<lanes, 1>(stream);
    }
    with_index(count, [&]<typename Index>(Index) {
      const Divisor<Index> by_threads(threads_of_head), by_tokens(tokens), by_sequence(layout.sequence);
      const unsigned blocks = blocks_for(count, kThreads);
      if (interleaved) {
        rotate<T, lanes, heads, true><<<blocks, kThreads, 0, stream>>>(layout, count, by_threads, by_tokens,
                                                                       by_sequence, x, cos, sin, positions, y);
      } else {
        rotate<T, lanes, heads, false><<<blocks, kThreads, 0, stream>>>(layout, count, by_threads, by_tokens,
                                                                        by_sequence, x, cos, sin, positions, y);
      }
    });
  }
};

struct Cuda : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    Layout layout;
    OPGATE_RETURN_IF_ERROR(Layout::of(in, attributes, layout));
    if (out["y"].size() == 0) return {};
    const Call<T> call{layout,
                       attributes.boolean("interleaved"),
                       in["x"].data<T>(),
                       in["cos_cache"].data<T>(),
                       in["sin_cache"].data<T>(),
                       data_or_null<std::int64_t>(in, "position_ids"),
                       out["y"].data<T>()};
    constexpr int lanes = elementwise::kBytes / sizeof(T);
    if (call.has_vectors(lanes)) {
      call.template launch<lanes, kHeads>(stream_of(context));
    } else {
      call.template launch<1, kHeads>(stream_of(context));
    }
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::rotary_embedding

OPGATE_CUDA_KERNEL(RotaryEmbedding, opgate::ops::rotary_embedding::Cuda)

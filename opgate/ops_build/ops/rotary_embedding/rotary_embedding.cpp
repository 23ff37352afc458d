#include "rotary_embedding.h"

#include "kernel_toolkit/elementwise.h"
#include "kernel_toolkit/rows.h"

namespace opgate::ops::rotary_embedding {
namespace {

/// Rotates the pairs (x[i], x[i + half]).
template <typename C>
void rotate_halves(const C* __restrict__ x, const C* __restrict__ cos, const C* __restrict__ sin, std::int64_t half,
                   C* __restrict__ y) {
  for (std::int64_t i = 0; i < half; ++i) {
    y[i] = cos[i] * x[i] - sin[i] * x[half + i];
    y[half + i] = sin[i] * x[i] + cos[i] * x[half + i];
  }
}

/// Rotates the pairs (x[2 * i], x[2 * i + 1]).
template <typename C>
void rotate_neighbours(const C* __restrict__ x, const C* __restrict__ cos, const C* __restrict__ sin, std::int64_t half,
                       C* __restrict__ y) {
  for (std::int64_t i = 0; i < half; ++i) {
    y[2 * i] = cos[i] * x[2 * i] - sin[i] * x[2 * i + 1];
    y[2 * i + 1] = sin[i] * x[2 * i] + cos[i] * x[2 * i + 1];
  }
}

struct Cpu : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    Layout layout;
    OPGATE_RETURN_IF_ERROR(Layout::of(in, attributes, layout));
    const std::int64_t* const positions = data_or_null<std::int64_t>(in, "position_ids");
    const std::int64_t tokens = layout.batch * layout.sequence, half = layout.half(), rotated = layout.rotated;
    for (std::int64_t i = 0; positions && i < tokens; ++i) {
      if (positions[i] < 0 || positions[i] >= layout.positions) {
        return Status::invalid("input 'position_ids': element " + std::to_string(i) + " is " +
                               std::to_string(positions[i]) + ", expected 0.." + std::to_string(layout.positions - 1));
      }
    }
    if (out["y"].size() == 0) return {};
    const auto rotate =
        attributes.boolean("interleaved") ? &rotate_neighbours<ComputeType<T>> : &rotate_halves<ComputeType<T>>;
    const T *const x = in["x"].data<T>(), *const cos = in["cos_cache"].data<T>(),
                   *const sin = in["sin_cache"].data<T>();
    T* const y = out["y"].data<T>();
    const std::int64_t grain = std::max<std::int64_t>(1, kElementGrain / (layout.heads * layout.head_size));
    context.parallel_for(tokens, grain, [&](std::int64_t begin, std::int64_t end) {
      rows::Buffer<T> wide_cos(half), wide_sin(half), wide(rotated), result(rotated);
      for (std::int64_t token = begin; token < end; ++token) {
        const std::int64_t row = (positions ? positions[token] : token) * half;
        const auto* const factors = wide_cos.read(cos + row, half);
        const auto* const other_factors = wide_sin.read(sin + row, half);
        for (std::int64_t head = 0; head < layout.heads; ++head) {
          const std::int64_t at = layout.begin(token, head);
          rotate(wide.read(x + at, rotated), factors, other_factors, half, result.target(y + at));
          result.store(y + at, rotated);
          std::copy_n(x + at + rotated, layout.head_size - rotated, y + at + rotated);
        }
      }
    });
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::rotary_embedding

OPGATE_CPU_KERNEL(RotaryEmbedding, opgate::ops::rotary_embedding::Cpu)

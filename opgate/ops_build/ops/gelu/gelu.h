#pragma once

#include "kernel_toolkit/elementary.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(Gelu, "<T: f16|bf16|f32|f64> Gelu(x: T[...]; approximate: {none|tanh}=none) -> (y: T[...])",
          "x times the normal distribution's share below x, or an approximation with tanh, elementwise.")

namespace opgate::ops::gelu {

struct Exact {
  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V x) const {
    return x * normal_cdf(x);
  }
};

/// 2 sqrt(2 / pi), and the same times 0.044715.
inline constexpr double kTwo = 1.5957691216057307118;
inline constexpr double kCubic = 0.071354816272600240;

/// (1 + tanh(u)) / 2 is sigmoid(2 u), here with u = sqrt(2 / pi) (x + 0.044715 x^3). It loses no digits where it is
/// small.
template <typename V>
OPGATE_HOST_DEVICE Logistic<V> tanh_share(V x) {
  return logistic(x * (V(kTwo) + V(kCubic) * x * x));
}

/// x, held so that x^3 doesn't overflow.
template <typename V>
OPGATE_HOST_DEVICE V without_overflow(V x) {
  return held(x, V(-1e9), V(1e9));
}

struct Tanh {
  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V x) const {
    return x * tanh_share(without_overflow(x)).value;
  }
};

/// The formula that the attribute `approximate` names. There is a loop for each formula, because a loop that chooses
/// for each element would compute both.
template <typename None, typename Approximation>
struct ByApproximation {
  template <typename Run>
  static Status choose(const Attributes& attributes, const Run& run) {
    return attributes.text("approximate") == "tanh" ? run(Approximation()) : run(None());
  }
};

using Formula = ByApproximation<Exact, Tanh>;

}  // namespace opgate::ops::gelu

OPGATE_FAST_ELEMENTWISE(Gelu, opgate::ops::gelu::Formula)

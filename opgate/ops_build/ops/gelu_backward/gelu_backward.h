#pragma once

#include "ops/gelu/gelu.h"

OPGATE_OP(GeluBackward,
          "<T: f16|bf16|f32|f64> GeluBackward(grad_y: T[...], x: T[...]; approximate: {none|tanh}=none) "
          "-> (grad_x: T[...])",
          "The gradient of Gelu: grad_y times the derivative of Gelu at x, elementwise.")

namespace opgate::ops::gelu_backward {

struct Exact {
  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V grad_y, V x) const {
    constexpr double density = 0.39894228040143267794;  // of the normal distribution at 0: 1 / sqrt(2 pi)
    return grad_y * (normal_cdf(x) + x * gaussian(x) * V(density));
  }
};

/// With s = sigmoid(2 u), the derivative is s + x s (1 - s) (2 u)'.
struct Tanh {
  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V grad_y, V x) const {
    const V held_x = gelu::without_overflow(x);
    const Logistic<V> s = gelu::tanh_share(held_x);
    const V slope = V(gelu::kTwo) + V(3 * gelu::kCubic) * held_x * held_x;
    return grad_y * (s.value + x * s.value * s.complement * slope);
  }
};

using Formula = gelu::ByApproximation<Exact, Tanh>;

}  // namespace opgate::ops::gelu_backward

OPGATE_FAST_ELEMENTWISE(GeluBackward, opgate::ops::gelu_backward::Formula)

#pragma once

#include "kernel_toolkit/elementary.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(SwishBackward,
          "<T: f16|bf16|f32|f64> SwishBackward(grad_y: T[...], x: T[...]; alpha: float=1) -> (grad_x: T[...])",
          "The gradient of Swish: grad_y times the derivative of Swish at x, elementwise.")

namespace opgate::ops::swish_backward {

/// With z = alpha x and s = sigmoid(z), the derivative is s + z s (1 - s).
struct Formula {
  float alpha;

  explicit Formula(const Attributes& attributes) : alpha(static_cast<float>(attributes.number("alpha"))) {}

  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V grad_y, V x) const {
    const V z = V(alpha) * x;
    const Logistic<V> s = logistic(z);
    return grad_y * (s.value + z * s.value * s.complement);
  }
};

}  // namespace opgate::ops::swish_backward

OPGATE_FAST_ELEMENTWISE(SwishBackward, opgate::ops::swish_backward::Formula)

#pragma once

#include "ops/mish/mish.h"

OPGATE_OP(MishBackward, "<T: f16|bf16|f32|f64> MishBackward(grad_y: T[...], x: T[...]) -> (grad_x: T[...])",
          "The gradient of Mish: grad_y times the derivative of Mish at x, elementwise.")

namespace opgate::ops::mish_backward {

struct Formula {
  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V grad_y, V x) const {
    return grad_y * mish::Derivative()(x);
  }
};

}  // namespace opgate::ops::mish_backward

OPGATE_FAST_ELEMENTWISE(MishBackward, opgate::ops::mish_backward::Formula)

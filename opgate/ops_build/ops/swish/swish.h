#pragma once

#include "kernel_toolkit/elementary.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(Swish, "<T: f16|bf16|f32|f64> Swish(x: T[...]; alpha: float=1) -> (y: T[...])",
          "x sigmoid(alpha x), elementwise.")

namespace opgate::ops::swish {

struct Formula {
  float alpha;

  explicit Formula(const Attributes& attributes) : alpha(static_cast<float>(attributes.number("alpha"))) {}

  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V x) const {
    return x * sigmoid(V(alpha) * x);
  }
};

}  // namespace opgate::ops::swish

OPGATE_FAST_ELEMENTWISE(Swish, opgate::ops::swish::Formula)

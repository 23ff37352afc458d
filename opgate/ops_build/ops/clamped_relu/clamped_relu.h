#pragma once

#include "kernel_toolkit/elementary.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(ClampedRelu, "<T: f16|bf16|f32|f64> ClampedRelu(x: T[...]; ceiling: float=6) -> (y: T[...])",
          "min(max(x, 0), ceiling), elementwise.")

namespace opgate::ops::clamped_relu {

struct Formula {
  float ceiling;

  explicit Formula(const Attributes& attributes) : ceiling(static_cast<float>(attributes.number("ceiling"))) {}

  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V x) const {
    const V positive = select(x < V(0), V(0), x);
    return select(positive > V(ceiling), V(ceiling), positive);
  }
};

}  // namespace opgate::ops::clamped_relu

OPGATE_ELEMENTWISE(ClampedRelu, opgate::ops::clamped_relu::Formula)

#pragma once

#include "kernel_toolkit/elementary.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(LeakyRelu, "<T: f16|bf16|f32|f64> LeakyRelu(x: T[...]; alpha: float=0.01) -> (y: T[...])",
          "x where x >= 0, alpha x elsewhere.")

namespace opgate::ops::leaky_relu {

struct Formula {
  float alpha;

  explicit Formula(const Attributes& attributes) : alpha(static_cast<float>(attributes.number("alpha"))) {}

  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V x) const {
    return select(x < V(0), V(alpha) * x, x);
  }
};

}  // namespace opgate::ops::leaky_relu

OPGATE_ELEMENTWISE(LeakyRelu, opgate::ops::leaky_relu::Formula)

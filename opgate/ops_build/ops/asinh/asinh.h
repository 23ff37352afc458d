#pragma once

#include "kernel_toolkit/elementary.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(Asinh, "<T: f16|bf16|f32|f64> Asinh(x: T[...]) -> (y: T[...])", "The inverse of sinh, elementwise.")

namespace opgate::ops::asinh {

struct Formula {
  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V x) const {
    return arcsinh(x);
  }
};

}  // namespace opgate::ops::asinh

OPGATE_FAST_ELEMENTWISE(Asinh, opgate::ops::asinh::Formula)

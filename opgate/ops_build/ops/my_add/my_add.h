#pragma once

#include "kernel_toolkit/elementary.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(MyAdd, "<T: f16|bf16|f32|f64|i32|i64> MyAdd(a: T[...], b: T[...]) -> (y: T[...])", "2 a + b, elementwise.")

namespace opgate::ops::my_add {

struct Formula {
  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V a, V b) const {
    if constexpr (std::is_integral_v<V>) {
      // Integers wrap around, as in NumPy. In C++ only unsigned ones may.
      using U = std::make_unsigned_t<V>;
      return static_cast<V>(U{2} * static_cast<U>(a) + static_cast<U>(b));
    } else {
      return V(2) * a + b;
    }
  }
};

}  // namespace opgate::ops::my_add

OPGATE_ELEMENTWISE(MyAdd, opgate::ops::my_add::Formula)

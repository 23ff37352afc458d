#pragma once

#include "kernel_toolkit/elementary.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(Mish, "<T: f16|bf16|f32|f64> Mish(x: T[...]) -> (y: T[...])", "x tanh(ln(1 + exp(x))), elementwise.")

namespace opgate::ops::mish {

/// Below it exp(x) is nearly denormal and |mish(x)| is less than 1e-35. The result is 0 there, which is the limit at
/// -inf. So is the derivative.
template <typename V>
inline constexpr V kLow = sizeof(V) == sizeof(float) ? V(-87) : V(-700);

/// Above it n / (n + 2), below, and the derivative are rounded to 1.
template <typename V>
inline constexpr V kHigh = sizeof(V) == sizeof(float) ? V(20) : V(22);

/// exp(x) with x clamped to [kLow, kHigh]. NaN is clamped too, because exp_in_range converts x to an integer.
template <typename V>
OPGATE_HOST_DEVICE V clamped_exp(V x) {
  const V above = select(x >= kLow<V>, x, kLow<V>);
  return exp_in_range(select(above > kHigh<V>, kHigh<V>, above));
}

/// tanh(ln(1 + e)) = ((1 + e)^2 - 1) / ((1 + e)^2 + 1) = n / (n + 2) with n = e (e + 2) and e = exp(x). It needs one
/// exponential and no terms cancel.
struct Formula {
  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V x) const {
    const V e = clamped_exp(x);
    const V n = e * (e + V(2));
    // The factor x is replaced by 0 and not the product, because the product at kLow is denormal and slow.
    return select(x < kLow<V>, V(0), x) * (n / (n + V(2)));
  }
};

/// The derivative. With t = n / (n + 2) it is t + x (1 - t^2) sigmoid(x). Since 1 - t^2 = 4 (1 + e)^2 / (n + 2)^2 and
/// sigmoid(x) = e / (1 + e), it is e ((e + 2)(n + 2) + 4 x (e + 1)) / (n + 2)^2. Terms cancel only near x = -1.192,
/// where the derivative is 0.
struct Derivative {
  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V x) const {
    const V e = clamped_exp(x);
    const V d = e * (e + V(2)) + V(2);
    const V second = V(4) * x * (e + V(1));
    V slope = e * ((e + V(2)) * d + second) / (d * d);
    // In f64, rounding each term costs 2 ulp near 1. The difference from 1 is small there and costs none.
    if constexpr (sizeof(V) == sizeof(double))
      slope = select(x > V(2), V(1) + (e * second - V(2) * d) / (d * d), slope);
    return select(x < kLow<V>, V(0), select(x > kHigh<V>, V(1), slope));
  }
};

}  // namespace opgate::ops::mish

OPGATE_FAST_ELEMENTWISE(Mish, opgate::ops::mish::Formula)

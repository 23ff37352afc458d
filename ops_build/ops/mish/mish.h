#pragma once

#include "core/elementary.h"
#include "core/op.h"

OPGATE_OP(Mish, "<T: f16|bf16|f32|f64> Mish(x: T[...]) -> (y: T[...])", "x tanh(ln(1 + exp(x))), elementwise.")

namespace opgate::ops::mish {

/// Below it exp(x) is about to become denormal and |mish(x)| is under 1e-35. It is taken as 0, which is also the limit at
/// -inf. So is its derivative.
template <typename V>
inline constexpr V kLow = std::is_same_v<V, float> ? V(-87) : V(-700);

/// From here on n / (n + 2), below, and the derivative round to 1 in either precision.
template <typename V>
inline constexpr V kHigh = V(20);

/// exp(x) with x clamped to [kLow, kHigh]. A NaN is clamped too: it must not reach the conversion to an integer.
template <typename V>
OPGATE_HOST_DEVICE V clamped_exp(V x) {
  const V above = select(x >= kLow<V>, x, kLow<V>);
  return exp_in_range(select(above > kHigh<V>, kHigh<V>, above));
}

/// tanh(ln(1 + e)) = ((1 + e)^2 - 1) / ((1 + e)^2 + 1) = n / (n + 2) with n = e (e + 2) and e = exp(x): one exponential
/// and no cancellation.
struct Formula {
  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V x) const {
    const V e = clamped_exp(x);
    const V n = e * (e + V(2));
    // The factor x becomes 0, not the product: GCC would compute x n / (n + 2) at kLow too, which is denormal and slow.
    return select(x < kLow<V>, V(0), x) * (n / (n + V(2)));
  }
};

/// The derivative. With t = n / (n + 2) it is t + x (1 - t^2) sigmoid(x). Since 1 - t^2 = 4 (1 + e)^2 / (n + 2)^2 and
/// sigmoid(x) = e / (1 + e), that is e ((e + 2)(n + 2) + 4 x (e + 1)) / (n + 2)^2. Terms cancel only where the
/// derivative itself passes through 0, at x = -1.192.
struct Derivative {
  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V x) const {
    const V e = clamped_exp(x);
    const V d = e * (e + V(2)) + V(2);
    const V slope = e * ((e + V(2)) * d + V(4) * x * (e + V(1))) / (d * d);
    return select(x < kLow<V>, V(0), select(x > kHigh<V>, V(1), slope));
  }
};

}  // namespace opgate::ops::mish

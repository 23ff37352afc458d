#pragma once

#include <cmath>

#include "kernel_toolkit/elementary.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(SigmoidFocalLoss,
          "<T: f16|bf16|f32|f64> SigmoidFocalLoss(x: T[...], target: T[...]; alpha: float=0.25, gamma: float=2) "
          "-> (loss: T[...])",
          "The focal loss of the logits x for targets in [0, 1], elementwise.")

namespace opgate::ops::sigmoid_focal_loss {

/// q^2 for q >= 0, the usual power.
struct Square {
  explicit Square(const Attributes&) {}

  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V q) const {
    return q * q;
  }
};

/// q^gamma for q >= 0. 0^0 is 1.
struct Power {
  float gamma;

  explicit Power(const Attributes& attributes) : gamma(static_cast<float>(attributes.number("gamma"))) {}

  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V q) const {
    // Below, q is denormal or 0, for which the logarithm is not made.
    const V least = sizeof(V) == sizeof(double) ? V(1e-307) : V(1e-37);
    const V normal = select(q < least, least, q);
    const V exponent = V(gamma) * log_of_normal(normal);
    const V power = exp_in_range(held(exponent, kExpLow<V>, kExpHigh<V>));
    return select(exponent < kExpLow<V>, V(0), power);
  }
};

/// What the loss and its derivative have in common.
template <typename V>
struct Terms {
  Logistic<V> p;  ///< the probability and its difference from 1
  V q;            ///< the probability of what the target is not
  V entropy;      ///< -target log(p) - (1 - target) log(1 - p)
  V weight;       ///< the weight of the target's class
};

template <typename V>
OPGATE_HOST_DEVICE Terms<V> terms(V x, V target, float alpha) {
  const Logistic<V> p = logistic(x);
  const V other = V(1) - target;
  const V magnitude = select(x < V(0), V(0) - x, x);
  // log(1 + e), with the rounding error of 1 + e. Below the range e counts as nothing.
  const V e = select(magnitude > V(0) - kExpLow<V>, V(0), exp_in_range(held(V(0) - magnitude, kExpLow<V>, V(0))));
  const V u = V(1) + e;
  const V log = log_of_normal(u) + (e - (u - V(1))) / u;
  // x (1 - target) keeps the digits that x - x target loses where the target is near 1.
  const V entropy = select(x < V(0), V(0) - x * target, x * other) + log;
  const V weight = select(V(alpha) < V(0), V(1), V(alpha) * target + (V(1) - V(alpha)) * other);
  return {p, p.value * other + p.complement * target, entropy, weight};
}

template <typename ToGamma>
struct Loss {
  float alpha;
  ToGamma to_gamma;

  explicit Loss(const Attributes& attributes)
      : alpha(static_cast<float>(attributes.number("alpha"))), to_gamma(attributes) {}

  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V x, V target) const {
    const Terms<V> t = terms(x, target, alpha);
    return t.weight * t.entropy * to_gamma(t.q);
  }
};

/// Of<Square> where gamma is 2, Of<Power> elsewhere.
template <template <typename> typename Of>
struct ByGamma {
  static Status check(const Attributes& attributes, const KnownSizes&) {
    const double gamma = attributes.number("gamma");
    if (!(gamma >= 0) || std::isinf(gamma)) return attributes.refuse("gamma", "a finite number, 0 or more");
    const double alpha = attributes.number("alpha");
    return alpha <= 1 ? Status() : attributes.refuse("alpha", "at most 1, or a negative number for no weights");
  }

  template <typename Run>
  static Status choose(const Attributes& attributes, const Run& run) {
    return attributes.number("gamma") == 2 ? run(Of<Square>(attributes)) : run(Of<Power>(attributes));
  }
};

using Formula = ByGamma<Loss>;

}  // namespace opgate::ops::sigmoid_focal_loss

OPGATE_FAST_ELEMENTWISE(SigmoidFocalLoss, opgate::ops::sigmoid_focal_loss::Formula)

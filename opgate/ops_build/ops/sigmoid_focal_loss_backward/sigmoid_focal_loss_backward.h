#pragma once

#include "ops/sigmoid_focal_loss/sigmoid_focal_loss.h"

OPGATE_OP(SigmoidFocalLossBackward,
          "<T: f16|bf16|f32|f64> SigmoidFocalLossBackward(grad_loss: T[...], x: T[...], target: T[...]; "
          "alpha: float=0.25, gamma: float=2) -> (grad_x: T[...])",
          "The gradient of SigmoidFocalLoss with respect to x, elementwise.")

namespace opgate::ops::sigmoid_focal_loss_backward {

/// With p' = p (1 - p), the entropy's derivative is p - target and that of q is p' (1 - 2 target).
template <typename ToGamma>
struct Derivative {
  float alpha, gamma;
  ToGamma to_gamma;

  explicit Derivative(const Attributes& attributes)
      : alpha(static_cast<float>(attributes.number("alpha"))),
        gamma(static_cast<float>(attributes.number("gamma"))),
        to_gamma(attributes) {}

  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V grad_loss, V x, V target) const {
    const auto t = sigmoid_focal_loss::terms(x, target, alpha);
    const V other = V(1) - target;
    // p - target, without cancelling where both are near 1.
    const V slope = t.p.value * other - t.p.complement * target;
    const V q = select(t.q > V(0), t.q, V(1));
    const V relative = t.p.value * t.p.complement * (other - target) / q;
    return grad_loss * t.weight * to_gamma(t.q) * (slope + V(gamma) * (t.entropy * relative));
  }
};

using Formula = sigmoid_focal_loss::ByGamma<Derivative>;

}  // namespace opgate::ops::sigmoid_focal_loss_backward

OPGATE_FAST_ELEMENTWISE(SigmoidFocalLossBackward, opgate::ops::sigmoid_focal_loss_backward::Formula)

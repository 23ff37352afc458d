#pragma once

#include <cmath>
#include <string>

#include "core/op.h"

OPGATE_OP(RMSNorm,
          "<T: f16|bf16|f32> RMSNorm(x: T[...,c], weight: T[c], residual?: T[...,c]; epsilon: float=0.00001) "
          "-> (y: T[...,c], sum?: T[...,c])",
          "x + residual, divided by the root of the mean of its squares over the last axis, times weight.")

namespace opgate::ops::rms_norm {

/// Reads and checks the attribute.
inline Status read_epsilon(const Attributes& attributes, float& epsilon) {
  epsilon = static_cast<float>(attributes.number("epsilon"));
  if (epsilon >= 0 && !std::isinf(epsilon)) return {};
  return Status::invalid("attribute 'epsilon': expected a finite number, 0 or more, got " + std::to_string(epsilon));
}

}  // namespace opgate::ops::rms_norm

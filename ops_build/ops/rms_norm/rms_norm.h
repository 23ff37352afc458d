#pragma once

#include <cmath>

#include "core/op.h"

OPGATE_OP(RMSNorm,
          "<T: f16|bf16|f32> RMSNorm(x: T[...,c], weight: T[c], residual?: T[...,c]; epsilon: float=0.00001) "
          "-> (y: T[...,c], sum?: T[...,c])",
          "x + residual, divided by the root of the mean of its squares over the last axis, times weight.")

namespace opgate::ops::rms_norm {

/// What both kernels have in common.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes&) {
    const double epsilon = attributes.number("epsilon");
    return epsilon >= 0 && !std::isinf(epsilon) ? Status() : attributes.refuse("epsilon", "a finite number, 0 or more");
  }
};

}  // namespace opgate::ops::rms_norm

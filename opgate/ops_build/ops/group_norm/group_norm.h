#pragma once

#include "norms/epsilon.h"

OPGATE_OP(
    GroupNorm,
    "<T: f16|bf16|f32|f64> GroupNorm(x: T[n,c,...], weight?: T[c], bias?: T[c], residual?: T[n,c,...]; "
    "groups: int, epsilon: float=0.00001) -> (y: T[n,c,...], sum?: T[n,c,...])",
    "x + residual, shifted and scaled to mean 0 and variance 1 in each group of channels, times weight, plus bias.")

namespace opgate::ops::group_norm {

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    OPGATE_RETURN_IF_ERROR(ChecksEpsilon::check(attributes, sizes));
    const std::int64_t groups = attributes.integer("groups");
    if (groups < 1) return attributes.refuse("groups", "1 or more");
    if (const auto c = sizes["c"]; c && *c % groups != 0) {
      return attributes.refuse("groups", "a divisor of c = " + std::to_string(*c));
    }
    return {};
  }
};

}  // namespace opgate::ops::group_norm

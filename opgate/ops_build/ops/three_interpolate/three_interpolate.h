#pragma once

#include <limits>
#include <string>

#include "kernel_toolkit/op.h"

OPGATE_OP(ThreeInterpolate,
          "<T: f16|bf16|f32|f64> ThreeInterpolate(features: T[n,c], idx: i32[m,k], weight: T[m,k]) -> (y: T[m,c])",
          "Interpolates features: each row of y is the sum of some rows of features, with weights.")

namespace opgate::ops::three_interpolate {

/// What the kernels of this op and of its gradient have in common.
struct Checked {
  static Status check(const Attributes&, const KnownSizes& sizes) {
    if (const auto n = sizes["n"]; n && *n > std::numeric_limits<std::int32_t>::max())
      return Status::invalid("input 'features': expected fewer than 2^31 rows, got " + std::to_string(*n));
    const auto m = sizes["m"], k = sizes["k"];
    std::int64_t count = 0;
    if (m && k && (__builtin_mul_overflow(*m, *k, &count) || count > std::numeric_limits<std::uint32_t>::max())) {
      return Status::invalid("input 'idx': expected fewer than 2^32 elements, got " + std::to_string(*m) + " x " +
                             std::to_string(*k));
    }
    return {};
  }
};

}  // namespace opgate::ops::three_interpolate

// What GroupNorm and its gradient have in common.
#pragma once

#include "norms/epsilon.h"

namespace opgate::ops::group_norm {

/// The `check` of the kernels.
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

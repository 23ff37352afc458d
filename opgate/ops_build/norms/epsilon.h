#pragma once

#include <cmath>

#include "kernel_toolkit/op.h"

namespace opgate::ops {

/// What the kernels of all norms have in common.
struct ChecksEpsilon {
  static Status check(const Attributes& attributes, const KnownSizes&) {
    const double epsilon = attributes.number("epsilon");
    return epsilon >= 0 && !std::isinf(epsilon) ? Status() : attributes.refuse("epsilon", "a finite number, 0 or more");
  }
};

}  // namespace opgate::ops

#pragma once

#include <cmath>

#include "core/op.h"

namespace opgate::ops {

/// What the kernels of all norms have in common.
struct ChecksEpsilon {
  static Status check(const Attributes& attributes, const KnownSizes&) {
    const double epsilon = attributes.number("epsilon");
    return epsilon >= 0 && !std::isinf(epsilon) ? Status() : attributes.refuse("epsilon", "a finite number, 0 or more");
  }
};

/// The elements of an optional input, or null.
template <typename T>
const T* data_or_null(const Inputs& in, const char* name) {
  return in.has(name) ? in[name].data<T>() : nullptr;
}

/// The elements of an optional output, or null.
template <typename T>
T* data_or_null(Outputs& out, const char* name) {
  return out.has(name) ? out[name].data<T>() : nullptr;
}

}  // namespace opgate::ops

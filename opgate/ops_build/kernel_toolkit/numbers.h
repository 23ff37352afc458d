// The types that kernels compute in.
#pragma once

#include "signature/dtype.h"

namespace opgate {

/// The type in which kernels compute with T: float for the 16-bit types, T for all others.
template <typename T>
struct Compute {
  using type = T;
};
template <>
struct Compute<f16> {
  using type = float;
};
template <>
struct Compute<bf16> {
  using type = float;
};
template <typename T>
using ComputeType = typename Compute<T>::type;

}  // namespace opgate

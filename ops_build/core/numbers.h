// The types that kernels compute in.
#pragma once

#include "dtype.h"

namespace opgate {

/// The type that arithmetic on T is done in: float for the 16-bit types, T for the rest.
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

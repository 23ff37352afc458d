// What elementwise formulas are made of, for every device.
//
// A formula is written for a type V, of which it uses arithmetic, comparisons and the functions below, and no branch:
//
//   template <typename V>
//   OPGATE_HOST_DEVICE V operator()(V x) const {
//     return select(x < V(0), V(alpha) * x, x);
//   }
//
// V is the type that the op computes in: float or double, or an integer. A vector of them can stand there once these
// functions have overloads for it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "dtype.h"

namespace opgate {

/// `a` where the condition holds, `b` elsewhere. Both are computed: GCC does not vectorize a loop that computes one of
/// them in a branch.
template <typename V>
OPGATE_HOST_DEVICE constexpr V select(bool condition, V a, V b) {
  return condition ? a : b;
}

/// exp(x) for x in [-87, 88]: 2^k times a polynomial on [-ln2/2, ln2/2] (Cephes' expf), within 2 ulp. It has no branch, so
/// the loop around it vectorizes.
OPGATE_HOST_DEVICE inline float exp_in_range(float x) {
#ifdef __CUDA_ARCH__
  return expf(x);
#else
  const float k = std::floor(x * 1.44269504088896341f + 0.5f);
  const float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float power = std::bit_cast<float>((static_cast<std::int32_t>(k) + 127) << 23);
  return (p * r * r + r + 1.0f) * power;
#endif
}

OPGATE_HOST_DEVICE inline double exp_in_range(double x) { return std::exp(x); }

}  // namespace opgate

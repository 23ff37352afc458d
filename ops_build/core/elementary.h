// The functions that elementwise formulas use, for every device.
//
// A formula is a template over a type V. It uses arithmetic, comparisons and the functions below, and has no branch:
//
//   template <typename V>
//   OPGATE_HOST_DEVICE V operator()(V x) const {
//     return select(x < V(0), V(alpha) * x, x);
//   }
//
// V is float, double or an integer type. A SIMD vector can take its place once these functions have overloads for it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "dtype.h"

namespace opgate {

/// `a` if the condition holds, otherwise `b`. Both are computed. GCC vectorizes no loop that has a branch for one of
/// them.
template <typename V>
OPGATE_HOST_DEVICE constexpr V select(bool condition, V a, V b) {
  return condition ? a : b;
}

/// exp(x) for x in [-87, 88]: 2^k times a polynomial on [-ln2/2, ln2/2] (Cephes' expf), with an error below 2 ulp. It
/// has no branch, so that GCC vectorizes the loop around it.
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

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

#include "signature/dtype.h"

namespace opgate {

/// `a` if the condition holds, otherwise `b`. Both are computed. GCC vectorizes no loop that has a branch for one of
/// them.
template <typename V>
OPGATE_HOST_DEVICE constexpr V select(bool condition, V a, V b) {
  return condition ? a : b;
}

/// exp(r) - 1 on [-ln2/2, ln2/2] (the polynomial of Cephes' expf).
OPGATE_HOST_DEVICE inline float expm1_near_0(float r) {
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p * r * r + r;
}

/// exp(x + rest) for x in [-87, 88] and a small `rest`, which has the digits that x lacks: 2^k times a polynomial on
/// [-ln2/2, ln2/2] (Cephes' expf), with an error below 2 ulp. It has no branch, so that GCC vectorizes the loop around
/// it. NaN gives NaN.
OPGATE_HOST_DEVICE inline float exp_in_range(float x, float rest = -0.0f) {
#ifdef __CUDA_ARCH__
  return expf(x + rest);
#else
  // The sum's lowest bits are the integer that is nearest to its first term.
  const float shifted = (x + rest) * 1.44269504088896341f + 12582912.0f;
  const float k = shifted - 12582912.0f;
  const float r = ((x - k * 0.693359375f) + k * 2.12194440e-4f) + rest;
  const float power = std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) + 127u) << 23);
  return (expm1_near_0(r) + 1.0f) * power;
#endif
}

/// The same for x in [-708, 709], with the series of exp on [-ln2/2, ln2/2].
OPGATE_HOST_DEVICE inline double exp_in_range(double x) {
#ifdef __CUDA_ARCH__
  return exp(x);
#else
  const double shifted = x * 1.4426950408889634 + 6755399441055744.0;
  const double k = shifted - 6755399441055744.0;
  const double r = (x - k * 6.93145751953125e-1) - k * 1.42860682030941723212e-6;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  const double power = std::bit_cast<double>((std::bit_cast<std::uint64_t>(shifted) + 1023u) << 52);
  return (p * r * r + r + 1.0) * power;
#endif
}

/// The range in which exp_in_range is a normal number.
template <typename V>
inline constexpr V kExpLow = sizeof(V) == sizeof(float) ? V(-87) : V(-708);
template <typename V>
inline constexpr V kExpHigh = sizeof(V) == sizeof(float) ? V(88) : V(709);

/// The lesser of x and a limit. NaN stays NaN.
template <typename V>
OPGATE_HOST_DEVICE V least(V x, V limit) {
  return select(x > limit, limit, x);
}

/// x held in [low, high]. NaN stays NaN.
template <typename V>
OPGATE_HOST_DEVICE V held(V x, V low, V high) {
  return least(select(x < low, low, x), high);
}

/// The sigmoid 1 / (1 + exp(-x)), and its difference from 1, which keeps its digits. The one is 0 below -88 (f64:
/// -709), the other above 87 (f64: 708), where their values are less than 1e-37.
template <typename V>
struct Logistic {
  V value, complement;
};

template <typename V>
OPGATE_HOST_DEVICE Logistic<V> logistic(V x) {
  const V e = exp_in_range(held(V(0) - x, kExpLow<V>, kExpHigh<V>));
  const V value = V(1) / (V(1) + e);
  return {select(x < V(0) - kExpHigh<V>, V(0), value), select(x > V(0) - kExpLow<V>, V(0), e * value)};
}

template <typename V>
OPGATE_HOST_DEVICE V sigmoid(V x) {
  return logistic(x).value;
}

/// exp(-x^2 / 2). It is 0 for |x| > 13.1 (f64: 37.5), where its value is less than 1e-37.
OPGATE_HOST_DEVICE inline float gaussian(float x) {
#ifdef __CUDA_ARCH__
  return expf(-0.5f * x * x);
#else
  const float a = least(std::fabs(x), 13.1f);
#ifdef __FMA__
  const float half = 0.5f * a, square = half * a, rest = __builtin_fmaf(half, a, -square);
#else
  // Half of the digits of a have an exact square.
  const float high = std::bit_cast<float>(std::bit_cast<std::uint32_t>(a) & 0xfffff000u);
  const float square = 0.5f * high * high, rest = 0.5f * (a - high) * (a + high);
#endif
  const float e = exp_in_range(-square, -rest);
  return select(std::fabs(x) > 13.1f, 0.0f, e);
#endif
}

OPGATE_HOST_DEVICE inline double gaussian(double x) {
#ifdef __CUDA_ARCH__
  return exp(-0.5 * x * x);
#else
  const double a = least(std::fabs(x), 37.5);
  return select(std::fabs(x) > 37.5, 0.0, exp_in_range(-0.5 * a * a));
#endif
}

/// The normal distribution's share below x: (1 + erf(x / sqrt(2))) / 2, within 7 ulp. No digits are lost where it is
/// small. It is 0 where gaussian(x) is 0 and x < 0.
///
/// With a = |x|, the share beyond a is gaussian(a) / (a + 3.5) times a polynomial in (a - 3.5) / (a + 3.5), which was
/// fitted to SciPy's erfcx on [0, 13.3] for the least relative error, 5.4e-9. Expansions in such a quotient:
/// M. Shepherd, J. Laframboise, "Chebyshev Approximation of (1 + 2x) exp(x^2) erfc x in 0 <= x < inf", 1981.
OPGATE_HOST_DEVICE inline float normal_cdf(float x) {
#ifdef __CUDA_ARCH__
  return normcdff(x);
#else
  const float a = least(std::fabs(x), 13.1f);
  const float inverse = 1.0f / (a + 3.5f);
  const float t = (a - 3.5f) * inverse;
  float p = 1.156852966e-4f;
  p = p * t + 4.312547632e-4f;
  p = p * t - 4.938759655e-4f;
  p = p * t - 3.181251582e-3f;
  p = p * t + 6.491252299e-3f;
  p = p * t + 1.740759825e-2f;
  p = p * t - 1.160526719e-1f;
  p = p * t + 3.154249620e-1f;
  p = p * t - 5.655617605e-1f;
  p = p * t + 7.444160752e-1f;
  const float beyond = gaussian(x) * (p * inverse);
  return select(x > 0.0f, 1.0f - beyond, beyond);
#endif
}

OPGATE_HOST_DEVICE inline double normal_cdf(double x) {
#ifdef __CUDA_ARCH__
  return normcdf(x);
#else
  return 0.5 * std::erfc(-0.70710678118654752440 * x);
#endif
}

/// The logarithm of a normal number x > 0 (Cephes' logf), with an error below 2 ulp.
OPGATE_HOST_DEVICE inline float log_of_normal(float x) {
#ifdef __CUDA_ARCH__
  return logf(x);
#else
  // x = 2^k m with m in [sqrt(1/2), sqrt(2)). The bits of sqrt(1/2) are 0x3f3504f3.
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) + (0x3f800000u - 0x3f3504f3u);
  const float k = static_cast<float>(static_cast<std::int32_t>(bits >> 23) - 127);
  const float m = std::bit_cast<float>((bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const float square = m * m;
  return ((p * m * square - k * 2.12194440e-4f) - 0.5f * square + m) + k * 0.693359375f;
#endif
}

OPGATE_HOST_DEVICE inline double log_of_normal(double x) { return std::log(x); }

/// asinh(x), within 3 ulp: x + x^3 times a polynomial in x^2 up to 1, ln(|x| + sqrt(x^2 + 1)) beyond. The polynomial
/// was fitted to NumPy's arcsinh for the least relative error, 3.1e-9.
OPGATE_HOST_DEVICE inline float arcsinh(float x) {
#ifdef __CUDA_ARCH__
  return asinhf(x);
#else
  const float a = std::fabs(x);
  const float s = a * a;
  float p = 6.577746634e-4f;
  p = p * s - 3.770163347e-3f;
  p = p * s + 1.031265819e-2f;
  p = p * s - 1.907380204e-2f;
  p = p * s + 2.940002187e-2f;
  p = p * s - 4.447139241e-2f;
  p = p * s + 7.498462425e-2f;
  p = p * s - 1.666661283e-1f;
  const float small = a + a * s * p;
  // From 1e9 on, the sum is 2a, and a^2 might overflow.
  const bool huge = a > 1e9f;
  const float log = log_of_normal(select(huge, a, a + std::sqrt(s + 1.0f))) + select(huge, 0.69314718056f, 0.0f);
  const float finite = select(a < 1.0f, small, log);
  return std::copysign(select(a <= 3.40282347e38f, finite, a), x);
#endif
}

OPGATE_HOST_DEVICE inline double arcsinh(double x) { return std::asinh(x); }

}  // namespace opgate

// Mish and its derivative of one value, for every device.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"

namespace opgate::ops {

/// exp(x) for x in [-87, 20]: 2^k times a polynomial on [-ln2/2, ln2/2] (Cephes' expf), without a branch so that the
/// loop around it vectorizes. Within 2 ulp.
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

/// Below it e = exp(x) is about to become denormal, |mish(x)| is under 1e-35 and taken as 0, which is also the limit at
/// -inf; its derivative likewise.
template <typename C>
inline constexpr C kMishLow = std::is_same_v<C, float> ? C(-87) : C(-700);

/// From here on tanh(ln(1 + e)) and the derivative round to 1 in either precision.
template <typename C>
inline constexpr C kMishHigh = C(20);

/// exp(x) with x clamped to [kMishLow, kMishHigh]. NaN is clamped too: it must not reach the conversion to an integer.
template <typename C>
OPGATE_HOST_DEVICE inline C clamped_exp(C x) {
  const C above = x >= kMishLow<C> ? x : kMishLow<C>;
  return exp_in_range(above > kMishHigh<C> ? kMishHigh<C> : above);
}

/// tanh(ln(1 + e)) = ((1 + e)^2 - 1) / ((1 + e)^2 + 1) = n / (n + 2) with n = e (e + 2) and e = exp(x): one exponential
/// and no cancellation.
template <typename C>
OPGATE_HOST_DEVICE inline C mish(C x) {
  const C e = clamped_exp(x);
  const C n = e * (e + C(2));
  return x < kMishLow<C> ? C(0) : x > kMishHigh<C> ? x : x * (n / (n + C(2)));
}

/// The derivative of mish. With t = n / (n + 2) it is t + x (1 - t^2) sigmoid(x); since 1 - t^2 = 4 (1 + e)^2 / (n +
/// 2)^2 and sigmoid(x) = e / (1 + e), that is e ((e + 2)(n + 2) + 4 x (e + 1)) / (n + 2)^2. Terms cancel only where the
/// derivative itself passes through 0, at x = -1.192.
template <typename C>
OPGATE_HOST_DEVICE inline C mish_derivative(C x) {
  const C e = clamped_exp(x);
  const C d = e * (e + C(2)) + C(2);
  const C slope = e * ((e + C(2)) * d + C(4) * x * (e + C(1))) / (d * d);
  return x < kMishLow<C> ? C(0) : x > kMishHigh<C> ? C(1) : slope;
}

}  // namespace opgate::ops

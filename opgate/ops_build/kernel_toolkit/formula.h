// The functions of the formulas that `opgate build` writes from Python. They have NumPy's meaning for every value.
//
// V is float, double or an integer type. Those without std:: in them have no branch, so that compilers vectorize the
// loop around them.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "elementary.h"
#include "elementwise_kernel.h"
#include "op.h"

namespace opgate::formula {

template <typename V>
using Unsigned = typename std::conditional_t<std::is_integral_v<V>, std::make_unsigned<V>, std::type_identity<V>>::type;

/// select() of bits. Where a condition is the same for all elements, compilers would make a loop for each value of it,
/// and give up where the loop is long.
template <typename V>
OPGATE_HOST_DEVICE V blend(bool condition, V a, V b) {
#ifdef __CUDA_ARCH__
  return condition ? a : b;
#else
  using Bits =
      std::conditional_t<sizeof(V) == 8, std::uint64_t, std::conditional_t<sizeof(V) == 4, std::uint32_t, Unsigned<V>>>;
  const Bits mask = static_cast<Bits>(Bits{0} - static_cast<Bits>(condition));
  return std::bit_cast<V>(
      static_cast<Bits>((std::bit_cast<Bits>(a) & mask) | (std::bit_cast<Bits>(b) & static_cast<Bits>(~mask))));
#endif
}

// Integers wrap around, as in NumPy. In C++ only unsigned ones may.

template <typename V>
OPGATE_HOST_DEVICE V add(V a, V b) {
  return static_cast<V>(Unsigned<V>(a) + Unsigned<V>(b));
}
template <typename V>
OPGATE_HOST_DEVICE V subtract(V a, V b) {
  return static_cast<V>(Unsigned<V>(a) - Unsigned<V>(b));
}
template <typename V>
OPGATE_HOST_DEVICE V multiply(V a, V b) {
  if constexpr (std::is_integral_v<V> && sizeof(V) < sizeof(int))
    return static_cast<V>(a * b);
  else
    return static_cast<V>(Unsigned<V>(a) * Unsigned<V>(b));
}
template <typename V>
OPGATE_HOST_DEVICE V negative(V x) {
  if constexpr (std::is_integral_v<V>)
    return static_cast<V>(Unsigned<V>(0) - Unsigned<V>(x));
  else
    return -x;
}
template <typename V>
OPGATE_HOST_DEVICE V absolute(V x) {
  if constexpr (std::is_integral_v<V>)
    return select(x < V(0), negative(x), x);
  else
    return std::fabs(x);
}
template <typename V>
OPGATE_HOST_DEVICE V square(V x) {
  return multiply(x, x);
}

/// The quotient rounded down. Integers give 0 where b is 0.
template <typename V>
OPGATE_HOST_DEVICE V floor_divide(V a, V b) {
  if constexpr (std::is_integral_v<V>) {
    if (b == V(0)) return V(0);
    if constexpr (std::is_signed_v<V>) {
      if (b == V(-1)) return negative(a);  // the least number has no counterpart
    }
    const V quotient = static_cast<V>(a / b);
    return static_cast<V>(quotient - V((a % b != 0) && ((a < 0) != (b < 0))));
  } else {
    const V rest = std::fmod(a, b);
    if (b == V(0)) return a / b;
    const V quotient = (a - rest) / b - V(rest != V(0) && ((rest < V(0)) != (b < V(0))));
    const V whole = std::floor(quotient);
    return quotient == V(0) ? std::copysign(V(0), a / b) : whole + V(quotient - whole > V(0.5));
  }
}

/// a - b floor_divide(a, b), with the sign of b. Integers give 0 where b is 0.
template <typename V>
OPGATE_HOST_DEVICE V remainder(V a, V b) {
  if constexpr (std::is_integral_v<V>) {
    if (b == V(0)) return V(0);
    if constexpr (std::is_signed_v<V>) {
      if (b == V(-1)) return V(0);
    }
    const V rest = static_cast<V>(a % b);
    return static_cast<V>(rest != 0 && ((rest < 0) != (b < 0)) ? rest + b : rest);
  } else {
    const V rest = std::fmod(a, b);
    if (rest == V(0)) return std::copysign(V(0), b);
    return (rest < V(0)) != (b < V(0)) ? rest + b : rest;
  }
}

// NaN stays NaN, whichever of both it is.

template <typename V>
OPGATE_HOST_DEVICE V minimum(V a, V b) {
  if constexpr (std::is_integral_v<V>)
    return select(a < b, a, b);
  else
    return select(a != a, a, select(a < b, a, b));
}
template <typename V>
OPGATE_HOST_DEVICE V maximum(V a, V b) {
  if constexpr (std::is_integral_v<V>)
    return select(a > b, a, b);
  else
    return select(a != a, a, select(a > b, a, b));
}
/// The lesser and the greater of x and a limit that is not NaN.
template <typename V>
OPGATE_HOST_DEVICE V at_most(V x, V limit) {
  return select(x > limit, limit, x);
}
template <typename V>
OPGATE_HOST_DEVICE V at_least(V x, V limit) {
  return select(x < limit, limit, x);
}

template <typename V>
OPGATE_HOST_DEVICE V sign(V x) {
  if constexpr (std::is_integral_v<V>)
    return static_cast<V>((x > V(0)) - (x < V(0)));
  else
    return select(x > V(0), V(1), select(x < V(0), V(-1), x));
}
template <typename V>
OPGATE_HOST_DEVICE bool isnan(V x) {
  return x != x;
}
template <typename V>
OPGATE_HOST_DEVICE bool isinf(V x) {
  return std::fabs(x) == V(INFINITY);
}
template <typename V>
OPGATE_HOST_DEVICE bool isfinite(V x) {
  return std::fabs(x) < V(INFINITY);
}

template <typename V>
OPGATE_HOST_DEVICE V floor(V x) {
  return std::floor(x);
}
template <typename V>
OPGATE_HOST_DEVICE V ceil(V x) {
  return std::ceil(x);
}
template <typename V>
OPGATE_HOST_DEVICE V trunc(V x) {
  return std::trunc(x);
}
/// The nearest integer, the even one of two.
template <typename V>
OPGATE_HOST_DEVICE V rint(V x) {
#if defined(__CUDA_ARCH__) || defined(__SSE4_1__) || defined(__aarch64__)
  return std::rint(x);
#else
  // Adding and taking away a number whose last digit is 1 rounds, if |x| is less than that number.
  constexpr V kDigits = sizeof(V) == sizeof(float) ? V(8388608) : V(4503599627370496);
  const V shift = std::copysign(kDigits, x);
  return select(std::fabs(x) < kDigits, std::copysign((x + shift) - shift, x), x);
#endif
}
template <typename V>
OPGATE_HOST_DEVICE V sqrt(V x) {
  return std::sqrt(x);
}

/// exp(x): 0 below -104 (f64: -746), infinite above 88.7 (f64: 709.8), with an error below 2 ulp between.
OPGATE_HOST_DEVICE inline float exp(float x) {
#ifdef __CUDA_ARCH__
  return expf(x);
#else
  const float within = held(x, -104.0f, 89.0f);
  // 2^k is made of two factors, each of which is a normal number.
  const float shifted = within * 1.44269504088896341f + 12582912.0f;
  const float k = shifted - 12582912.0f;
  const float r = (within - k * 0.693359375f) + k * 2.12194440e-4f;
  const std::int32_t power = std::bit_cast<std::int32_t>(shifted) - 0x4b400000, half = power >> 1;
  const float first = std::bit_cast<float>((half + 127) << 23);
  const float second = std::bit_cast<float>((power - half + 127) << 23);
  return (expm1_near_0(r) + 1.0f) * first * second;
#endif
}
OPGATE_HOST_DEVICE inline double exp(double x) {
#ifdef __CUDA_ARCH__
  return ::exp(x);
#else
  // exp(x) = exp(near) exp(rest), and only one of both differs from 1 but for results that are denormal or infinite.
  const double near = held(x, -708.0, 709.0);
  const double rest = held(x - near, -40.0, 1.0);
  const double value = exp_in_range(near) * exp_in_range(select(x != near, rest, 0.0));
  return select(x > 709.79, std::numeric_limits<double>::infinity(), select(x < -746.0, 0.0, value));
#endif
}

/// exp(x) - 1, without losing the digits of a small x.
OPGATE_HOST_DEVICE inline float expm1(float x) {
#ifdef __CUDA_ARCH__
  return expm1f(x);
#else
  const float near = expm1_near_0(held(x, -0.35f, 0.35f));
  return select(std::fabs(x) < 0.3465736f, near, exp(x) - 1.0f);
#endif
}
OPGATE_HOST_DEVICE inline double expm1(double x) { return std::expm1(x); }

/// The natural logarithm: -infinity of 0, NaN of what is less.
OPGATE_HOST_DEVICE inline float log(float x) {
#ifdef __CUDA_ARCH__
  return logf(x);
#else
  const bool small = x < 1.17549435e-38f;  // a denormal number becomes a normal one
  const float normal = select(small, x * 8388608.0f, x);
  const float value = log_of_normal(normal) - select(small, 15.9423847f, 0.0f);
  const float infinity = std::numeric_limits<float>::infinity();
  const float positive = select(x < infinity, value, x);
  return select(x > 0.0f, positive, select(x == 0.0f, -infinity, std::numeric_limits<float>::quiet_NaN()));
#endif
}
OPGATE_HOST_DEVICE inline double log(double x) { return std::log(x); }

/// log(1 + x), without losing the digits of a small x: the rounding error of 1 + x is made good (W. Kahan).
OPGATE_HOST_DEVICE inline float log1p(float x) {
#ifdef __CUDA_ARCH__
  return log1pf(x);
#else
  const float u = 1.0f + x;
  const float value = log(u) * (x / (u - 1.0f));
  return select(u == 1.0f || x == std::numeric_limits<float>::infinity(), x, value);
#endif
}
OPGATE_HOST_DEVICE inline double log1p(double x) { return std::log1p(x); }

/// The hyperbolic tangent: Cephes' polynomial below 0.625, 1 - 2 / (exp(2 |x|) + 1) beyond.
OPGATE_HOST_DEVICE inline float tanh(float x) {
#ifdef __CUDA_ARCH__
  return tanhf(x);
#else
  const float a = std::fabs(x), near = least(a, 0.625f), s = near * near;
  float p = -5.70498872745e-3f;
  p = p * s + 2.06390887954e-2f;
  p = p * s - 5.37397155531e-2f;
  p = p * s + 1.33314422036e-1f;
  p = p * s - 3.33332819422e-1f;
  const float beyond = 1.0f - 2.0f / (exp_in_range(least(a, 20.0f) * 2.0f) + 1.0f);
  return std::copysign(select(a < 0.625f, near + near * s * p, beyond), x);
#endif
}
OPGATE_HOST_DEVICE inline double tanh(double x) { return std::tanh(x); }

template <typename V>
OPGATE_HOST_DEVICE V sigmoid(V x) {
  return logistic(x).value;
}
template <typename V>
OPGATE_HOST_DEVICE V gaussian(V x) {
  return opgate::gaussian(x);
}
template <typename V>
OPGATE_HOST_DEVICE V normal_cdf(V x) {
  return opgate::normal_cdf(x);
}
template <typename V>
OPGATE_HOST_DEVICE V arcsinh(V x) {
  return opgate::arcsinh(x);
}

template <typename V>
OPGATE_HOST_DEVICE V sigmoid_of_negative(V x) {
  return logistic(x).complement;
}

/// log(1 + exp(x)).
template <typename V>
OPGATE_HOST_DEVICE V softplus(V x) {
  const V e = exp(-std::fabs(x)), u = V(1) + e;
  // The second term is the rounding error of 1 + e, and e itself where it is small.
  return at_least(x, V(0)) + (log_of_normal(u) + (e - (u - V(1))) / u);
}

/// log(exp(a) + exp(b)), which overflows in neither.
template <typename V>
OPGATE_HOST_DEVICE V logaddexp(V a, V b) {
  const V distance = select(a == b, V(0), a - b);  // infinity is as far from itself as any other number
  return maximum(a, b) + softplus(-std::fabs(distance));
}

/// x to the power of y, with every case of std::pow. The logarithm and the exponential are those of doubles, so that
/// the result is rounded once.
OPGATE_HOST_DEVICE inline float power(float x, float y) {
#ifdef __CUDA_ARCH__
  return powf(x, y);
#else
  // a = 2^k m with m in [sqrt(1/2), sqrt(2)), and log(m) = 2 artanh(s). The upper half of the bits of sqrt(1/2) is
  // 0x3fe6a09e. A float that is denormal is a normal double.
  const double a = std::fabs(static_cast<double>(x)), wide = y;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(a) + (0x3ff0000000000000u - 0x3fe6a09e00000000u);
  const double k = std::bit_cast<double>((bits >> 52) | 0x4330000000000000u) - (4503599627370496.0 + 1023.0);
  const double m = std::bit_cast<double>((bits & 0x000fffffffffffffu) + 0x3fe6a09e00000000u);
  const double s = (m - 1.0) / (m + 1.0), square = s * s;
  double p = 1.0 / 13.0;
  p = p * square + 1.0 / 11.0;
  p = p * square + 1.0 / 9.0;
  p = p * square + 1.0 / 7.0;
  p = p * square + 1.0 / 5.0;
  p = p * square + 1.0 / 3.0;
  const double log = k * 0.69314718055994531 + 2.0 * (s + s * square * p);
  const float finite = static_cast<float>(exp_in_range(held(wide * log, -708.0, 709.0)));
  // Of 0 and infinity the logarithm is not made.
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const bool endless = std::fabs(x) == infinity;
  const float at_zero = blend(y < 0.0f, infinity, 0.0f), at_infinity = blend(y < 0.0f, 0.0f, infinity);
  const float magnitude = select(x == 0.0f, at_zero, select(endless, at_infinity, finite));
  const float half = y * 0.5f;
  const bool whole = rint(y) == y, odd = whole & (rint(half) != half);
  const float sign = blend(odd, std::copysign(1.0f, x), 1.0f);
  const float result = select((x < 0.0f) & !endless, blend(whole, magnitude, nan), magnitude) * sign;
  const float known = select(x != x, x, blend(y != y, y, result));
  const float of_one = select(x == 1.0f, 1.0f, select(x == -1.0f, blend(std::fabs(y) == infinity, 1.0f, known), known));
  return blend(y == 0.0f, 1.0f, of_one);
#endif
}
OPGATE_HOST_DEVICE inline double power(double x, double y) { return std::pow(x, y); }
/// Integers wrap around. A negative power gives the whole part of the quotient, and 0 where x is 0.
template <typename V>
  requires std::is_integral_v<V>
OPGATE_HOST_DEVICE V power(V x, V y) {
  if constexpr (std::is_signed_v<V>) {
    if (y < V(0)) return static_cast<V>(x == V(1) ? 1 : x == V(-1) ? 1 - 2 * (y & 1) : 0);
  }
  std::uint64_t result = 1, square = static_cast<std::uint64_t>(x);
  for (std::uint64_t left = static_cast<std::uint64_t>(y); left != 0; left >>= 1) {
    if (left & 1) result *= square;
    square *= square;
  }
  return static_cast<V>(result);
}

#define OPGATE_OF_CMATH(name, function) \
  template <typename V>                 \
  OPGATE_HOST_DEVICE V name(V x) {      \
    return std::function(x);            \
  }
OPGATE_OF_CMATH(erf, erf)
OPGATE_OF_CMATH(exp2, exp2)
OPGATE_OF_CMATH(log2, log2)
OPGATE_OF_CMATH(log10, log10)
OPGATE_OF_CMATH(sin, sin)
OPGATE_OF_CMATH(cos, cos)
OPGATE_OF_CMATH(tan, tan)
OPGATE_OF_CMATH(arcsin, asin)
OPGATE_OF_CMATH(arccos, acos)
OPGATE_OF_CMATH(arctan, atan)
OPGATE_OF_CMATH(sinh, sinh)
OPGATE_OF_CMATH(cosh, cosh)
OPGATE_OF_CMATH(arccosh, acosh)
OPGATE_OF_CMATH(arctanh, atanh)
OPGATE_OF_CMATH(cbrt, cbrt)
#undef OPGATE_OF_CMATH
template <typename V>
OPGATE_HOST_DEVICE V arctan2(V y, V x) {
  return std::atan2(y, x);
}
template <typename V>
OPGATE_HOST_DEVICE V hypot(V x, V y) {
  return std::hypot(x, y);
}
template <typename V>
OPGATE_HOST_DEVICE V copysign(V x, V y) {
  return std::copysign(x, y);
}

/// The error of attributes from which a number is computed that the integers V don't have.
template <typename V>
Status fits(const char* name, std::int64_t value) {
  if constexpr (std::is_integral_v<V>) {
    if (value < std::int64_t{std::numeric_limits<V>::min()} || value > std::int64_t{std::numeric_limits<V>::max()}) {
      return Status::invalid("attribute '" + std::string(name) + "': expected a number that the tensors can hold, " +
                             std::to_string(std::int64_t{std::numeric_limits<V>::min()}) + ".." +
                             std::to_string(std::int64_t{std::numeric_limits<V>::max()}) + ", got " +
                             std::to_string(value));
    }
  }
  return {};
}

}  // namespace opgate::formula

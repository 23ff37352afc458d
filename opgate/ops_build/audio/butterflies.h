// The passes of a Fourier transform, for every device: V is a number, or a vector of numbers.
#pragma once

#include <cstddef>
#include <vector>

#include "audio/spectrum.h"
#include "signature/dtype.h"

namespace opgate::audio {

/// A complex number, or one in each lane.
template <typename V>
struct ComplexOf {
  V re, im;

  OPGATE_HOST_DEVICE friend ComplexOf operator+(const ComplexOf& a, const ComplexOf& b) {
    return {a.re + b.re, a.im + b.im};
  }
  OPGATE_HOST_DEVICE friend ComplexOf operator-(const ComplexOf& a, const ComplexOf& b) {
    return {a.re - b.re, a.im - b.im};
  }
  OPGATE_HOST_DEVICE friend ComplexOf operator*(const ComplexOf& a, Root w) {
    return {a.re * w.re - a.im * w.im, a.re * w.im + a.im * w.re};
  }
  /// a times -i.
  OPGATE_HOST_DEVICE friend ComplexOf minus_i(const ComplexOf& a) { return {a.im, -a.re}; }
};

/// The lengths of the passes of a transform: 4, 2, 3, 5 and whatever primes are left.
inline std::vector<std::size_t> factors_of(std::size_t length) {
  std::vector<std::size_t> factors;
  const auto take = [&](std::size_t factor) {
    for (; length % factor == 0; length /= factor) factors.push_back(factor);
  };
  for (const std::size_t factor : {4, 2, 3, 5}) take(factor);
  for (std::size_t factor = 7; factor * factor <= length; factor += 2) take(factor);
  if (length > 1) factors.push_back(length);
  return factors;
}

// The transforms of 2, 3, 4 and 5 numbers.

template <typename V>
OPGATE_HOST_DEVICE void butterfly(ComplexOf<V> (&x)[2]) {
  const ComplexOf<V> sum = x[0] + x[1];
  x[1] = x[0] - x[1];
  x[0] = sum;
}

template <typename V>
OPGATE_HOST_DEVICE void butterfly(ComplexOf<V> (&x)[3]) {
  constexpr float kSine = 0.86602540378443864676f;  // sin(2 pi / 3)
  const ComplexOf<V> sum = x[1] + x[2], turned = minus_i(x[1] - x[2]) * Root{kSine, 0};
  const ComplexOf<V> middle = x[0] - sum * Root{0.5f, 0};
  x[0] = x[0] + sum;
  x[1] = middle + turned;
  x[2] = middle - turned;
}

template <typename V>
OPGATE_HOST_DEVICE void butterfly(ComplexOf<V> (&x)[4]) {
  const ComplexOf<V> a = x[0] + x[2], b = x[0] - x[2], c = x[1] + x[3], d = minus_i(x[1] - x[3]);
  x[0] = a + c;
  x[1] = b + d;
  x[2] = a - c;
  x[3] = b - d;
}

template <typename V>
OPGATE_HOST_DEVICE void butterfly(ComplexOf<V> (&x)[5]) {
  constexpr float kCosine1 = 0.30901699437494742410f,
                  kCosine2 = -0.80901699437494742410f;                                 // cos(2 pi / 5), cos(4 pi / 5)
  constexpr float kSine1 = 0.95105651629515357212f, kSine2 = 0.58778525229247312917f;  // their sines
  const ComplexOf<V> a = x[1] + x[4], b = x[2] + x[3], c = minus_i(x[1] - x[4]), d = minus_i(x[2] - x[3]);
  const auto times = [](const ComplexOf<V>& z, float factor) { return ComplexOf<V>{z.re * factor, z.im * factor}; };
  const ComplexOf<V> e = x[0] + times(a, kCosine1) + times(b, kCosine2),
                     f = x[0] + times(a, kCosine2) + times(b, kCosine1);
  const ComplexOf<V> g = times(c, kSine1) + times(d, kSine2), h = times(c, kSine2) - times(d, kSine1);
  x[0] = x[0] + a + b;
  x[1] = e + g;
  x[2] = f + h;
  x[3] = f - h;
  x[4] = e - g;
}

}  // namespace opgate::audio

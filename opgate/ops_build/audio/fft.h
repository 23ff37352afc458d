// A complex Fourier transform of any length, of many sequences at once: each lane of a vector is a sequence of its own.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "audio/spectrum.h"

namespace opgate::audio {

#ifdef __AVX512F__
inline constexpr int kLanes = 16;
#else
inline constexpr int kLanes = 8;
#endif
using Vector = float __attribute__((vector_size(sizeof(float) * kLanes)));

/// A complex number in each lane.
struct Complex {
  Vector re, im;
};

inline Complex operator+(const Complex& a, const Complex& b) { return {a.re + b.re, a.im + b.im}; }
inline Complex operator-(const Complex& a, const Complex& b) { return {a.re - b.re, a.im - b.im}; }
/// a times -i.
inline Complex minus_i(const Complex& a) { return {a.im, -a.re}; }

inline Complex operator*(const Complex& a, Root w) { return {a.re * w.re - a.im * w.im, a.re * w.im + a.im * w.re}; }

/// X[k] = sum over i of x[i] exp(-2 pi j i k / n). Stockham's algorithm with factors 4, 2, 3, 5 and whatever primes are
/// left: the results come in order, and every pass reads and writes whole vectors.
class Fourier {
 public:
  explicit Fourier(std::size_t length) : length_(length), roots_(roots_of_unity(length)) {
    std::size_t left = length;
    const auto take = [&](std::size_t factor) {
      for (; left % factor == 0; left /= factor) factors_.push_back(factor);
    };
    for (const std::size_t factor : {4, 2, 3, 5}) take(factor);
    for (std::size_t factor = 7; factor * factor <= left; factor += 2) take(factor);
    if (left > 1) factors_.push_back(left);
  }

  std::size_t length() const { return length_; }

  /// Transforms `values`; `other` is memory of the same length. Returns where the result is, one of the two.
  Complex* run(Complex* values, Complex* other) const {
    std::size_t length = length_, stride = 1;
    for (const std::size_t factor : factors_) {
      switch (factor) {
        case 2: pass<2>(factor, length, stride, values, other); break;
        case 3: pass<3>(factor, length, stride, values, other); break;
        case 4: pass<4>(factor, length, stride, values, other); break;
        case 5: pass<5>(factor, length, stride, values, other); break;
        default: pass<0>(factor, length, stride, values, other); break;
      }
      std::swap(values, other);
      length /= factor;
      stride *= factor;
    }
    return values;
  }

 private:
  /// One pass over `stride` interleaved sequences of `length`. `radix` is the factor, or 0 for any.
  template <int radix>
  void pass(std::size_t factor, std::size_t length, std::size_t stride, const Complex* in, Complex* out) const {
    const std::size_t parts = length / factor, step = length_ / length;
    for (std::size_t p = 0; p < parts; ++p) {
      for (std::size_t q = 0; q < stride; ++q) {
        const Complex* const from = in + q + stride * p;
        Complex* const to = out + q + stride * factor * p;
        const std::size_t apart = stride * parts;
        if constexpr (radix == 0) {
          for (std::size_t k = 0; k < factor; ++k) {
            Complex sum = from[0];
            for (std::size_t i = 1; i < factor; ++i)
              sum = sum + from[apart * i] * roots_[i * k % factor * (length_ / factor)];
            to[stride * k] = sum * roots_[p * k * step % length_];
          }
        } else {
          Complex values[radix];
          for (int i = 0; i < radix; ++i) values[i] = from[apart * static_cast<std::size_t>(i)];
          butterfly(values);
          to[0] = values[0];
          for (int k = 1; k < radix; ++k)
            to[stride * static_cast<std::size_t>(k)] = values[k] * roots_[p * static_cast<std::size_t>(k) * step];
        }
      }
    }
  }

  static void butterfly(Complex (&x)[2]) {
    const Complex sum = x[0] + x[1];
    x[1] = x[0] - x[1];
    x[0] = sum;
  }

  static void butterfly(Complex (&x)[3]) {
    constexpr float kSine = 0.86602540378443864676f;  // sin(2 pi / 3)
    const Complex sum = x[1] + x[2], turned = minus_i(x[1] - x[2]) * Root{kSine, 0};
    const Complex middle = x[0] - sum * Root{0.5f, 0};
    x[0] = x[0] + sum;
    x[1] = middle + turned;
    x[2] = middle - turned;
  }

  static void butterfly(Complex (&x)[4]) {
    const Complex a = x[0] + x[2], b = x[0] - x[2], c = x[1] + x[3], d = minus_i(x[1] - x[3]);
    x[0] = a + c;
    x[1] = b + d;
    x[2] = a - c;
    x[3] = b - d;
  }

  static void butterfly(Complex (&x)[5]) {
    constexpr float kCosine1 = 0.30901699437494742410f,
                    kCosine2 = -0.80901699437494742410f;                                 // cos(2 pi / 5), cos(4 pi / 5)
    constexpr float kSine1 = 0.95105651629515357212f, kSine2 = 0.58778525229247312917f;  // their sines
    const Complex a = x[1] + x[4], b = x[2] + x[3], c = minus_i(x[1] - x[4]), d = minus_i(x[2] - x[3]);
    const auto times = [](const Complex& z, float factor) { return Complex{z.re * factor, z.im * factor}; };
    const Complex e = x[0] + times(a, kCosine1) + times(b, kCosine2),
                  f = x[0] + times(a, kCosine2) + times(b, kCosine1);
    const Complex g = times(c, kSine1) + times(d, kSine2), h = times(c, kSine2) - times(d, kSine1);
    x[0] = x[0] + a + b;
    x[1] = e + g;
    x[2] = f + h;
    x[3] = f - h;
    x[4] = e - g;
  }

  std::size_t length_;
  std::vector<Root> roots_;
  std::vector<std::size_t> factors_;
};

}  // namespace opgate::audio

// A complex Fourier transform of any length, of many sequences at once: each lane of a vector is a sequence of its own.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "audio/butterflies.h"

namespace opgate::audio {

#ifdef __AVX512F__
inline constexpr int kLanes = 16;
#else
inline constexpr int kLanes = 8;
#endif
using Vector = float __attribute__((vector_size(sizeof(float) * kLanes)));

/// A complex number in each lane.
using Complex = ComplexOf<Vector>;

/// X[k] = sum over i of x[i] exp(-2 pi j i k / n). Stockham's algorithm with factors 4, 2, 3, 5 and whatever primes are
/// left: the results come in order, and every pass reads and writes whole vectors.
class Fourier {
 public:
  explicit Fourier(std::size_t length)
      : length_(length), roots_(roots_of_unity(length)), factors_(factors_of(length)) {}

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

  std::size_t length_;
  std::vector<Root> roots_;
  std::vector<std::size_t> factors_;
};

}  // namespace opgate::audio

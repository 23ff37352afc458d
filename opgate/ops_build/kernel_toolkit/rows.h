// Rows of numbers on the CPU: their sums, and the buffers in which kernels compute with them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "convert.h"
#include "elementwise.h"
#include "numbers.h"
#include "signature/dtype.h"

namespace opgate::rows {

/// The bytes of a register. GCC makes much slower code of vectors that are longer than that.
#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

/// The sums over i in [0, count) of the values that term(values[i]...) returns, which is an std::array. `more` holds
/// pointers to arrays as long as `values`.
///
/// A partial sum of type C adds few values before it is added to a double, so the error doesn't grow with the row.
/// There are several partial sums, because they vectorize.
template <std::size_t sums, typename C, typename Term, typename... More>
[[gnu::flatten]] std::array<double, sums> sum(std::int64_t count, const Term term, const C* values,
                                              const More*... more) {
  constexpr std::int64_t kBlock = 1024, kLanes = 128 / sizeof(C);
  using Vector [[gnu::vector_size(kVectorBytes)]] = C;
  constexpr std::int64_t kWidth = kVectorBytes / sizeof(C), kVectors = kLanes / kWidth;
  const auto load = [](const C* from) {
    Vector vector;
    std::memcpy(&vector, from, sizeof(vector));
    return vector;
  };
  std::array<double, sums> total{};
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, count);
    Vector partial[sums][kVectors] = {};
    std::int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
#pragma GCC unroll 8
      for (std::int64_t k = 0; k < kVectors; ++k) {
        const auto terms = term(load(values + i + k * kWidth), load(more + i + k * kWidth)...);
#pragma GCC unroll 8
        for (std::size_t s = 0; s < sums; ++s) partial[s][k] += terms[s];
      }
    }
    C rest[sums] = {};
    for (; i < end; ++i) {
      const std::array<C, sums> terms = term(values[i], more[i]...);
      for (std::size_t s = 0; s < sums; ++s) rest[s] += terms[s];
    }
    for (std::size_t s = 0; s < sums; ++s) {
      Vector lanes = partial[s][0];
      for (std::int64_t k = 1; k < kVectors; ++k) lanes += partial[s][k];
      for (std::int64_t half = kWidth / 2; half > 0; half /= 2) {
        for (std::int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
      }
      total[s] += static_cast<double>(lanes[0] + rest[s]);
    }
  }
  return total;
}

/// Vectors as long as a register.
template <typename C>
struct Vectors {
  using Vector [[gnu::vector_size(kVectorBytes)]] = C;
  static constexpr std::int64_t kWidth = kVectorBytes / sizeof(C);

  static Vector load(const C* from) {
    Vector vector;
    std::memcpy(&vector, from, sizeof(vector));
    return vector;
  }
  static void store(Vector vector, C* to) { std::memcpy(to, &vector, sizeof(vector)); }
  static C sum(Vector vector) {
    for (std::int64_t half = kWidth / 2; half > 0; half /= 2) {
      for (std::int64_t lane = 0; lane < half; ++lane) vector[lane] += vector[lane + half];
    }
    return vector[0];
  }
};

/// The sum of the products of two rows.
template <typename C>
C product(const C* a, const C* b, std::int64_t c) {
  using V = Vectors<C>;
  typename V::Vector sums{}, more{};
  std::int64_t i = 0;
  for (; i + 2 * V::kWidth <= c; i += 2 * V::kWidth) {
    sums += V::load(a + i) * V::load(b + i);
    more += V::load(a + i + V::kWidth) * V::load(b + i + V::kWidth);
  }
  sums += more;
  C total = 0;
  for (; i < c; ++i) total += a[i] * b[i];
  return total + V::sum(sums);
}

/// The tensor as numbers of the compute type: itself, or a copy.
template <typename T>
const ComputeType<T>* wide(Context& context, const Tensor& tensor) {
  const T* const from = tensor.data<T>();
  if constexpr (std::is_same_v<ComputeType<T>, T>) {
    return from;
  } else {
    const std::int64_t count = tensor.size();
    float* const to = context.scratch<float>(count).data();
    context.parallel_for(count, kElementGrain,
                         [=](std::int64_t begin, std::int64_t end) { widen(from + begin, to + begin, end - begin); });
    return to;
  }
}

/// A row of T as numbers of ComputeType<T>: the row itself, or a copy in a buffer.
template <typename T>
class Buffer {
 public:
  using C = ComputeType<T>;
  static constexpr bool kCopies = !std::is_same_v<C, T>;

  explicit Buffer(std::int64_t count) : values_(static_cast<std::size_t>(kCopies ? count : 0)) {}

  /// The row as numbers of C, until the next call.
  const C* read(const T* row, std::int64_t count) {
    if constexpr (kCopies) {
      widen(row, values_.data(), count);
      return values_.data();
    } else {
      return row;
    }
  }

  /// Where to write the numbers of a row of T. store() brings them there.
  C* target(T* row) {
    if constexpr (kCopies)
      return values_.data();
    else
      return row;
  }

  void store(T* row, std::int64_t count) const {
    if constexpr (kCopies) narrow(values_.data(), row, count);
  }

 private:
  std::vector<C> values_;
};

/// The rows that a kernel normalizes: x, or x + residual rounded to T.
template <typename T>
class Sums {
 public:
  using C = ComputeType<T>;

  /// `residual` and `sum` may be null. `spare` has room for a sum that nobody wants.
  Sums(const T* x, const T* residual, T* sum, T* spare, std::int64_t length)
      : x_(x), residual_(residual), sum_(sum), spare_(spare), length_(length), wide_(length), other_(length) {}

  /// Computes the row that begins at `at`, and writes it to `sum`. The result is valid until the next call.
  const C* row(std::int64_t at) {
    if (!residual_) {
      if (sum_) std::copy_n(x_ + at, length_, sum_ + at);
      return wide_.read(x_ + at, length_);
    }
    T* const total = (sum_ ? sum_ : spare_) + at;
    const C* const x = wide_.read(x_ + at, length_);
    const C* const residual = other_.read(residual_ + at, length_);
    C* const to = wide_.target(total);
    for (std::int64_t i = 0; i < length_; ++i) to[i] = x[i] + residual[i];
    wide_.store(total, length_);
    return wide_.read(total, length_);
  }

 private:
  const T *x_, *residual_;
  T *sum_, *spare_;
  std::int64_t length_;
  Buffer<T> wide_, other_;
};

/// What makes a row one with mean 0 and variance 1: ((x - shift) - rest) * scale. The mean is shift + rest: a large
/// mean doesn't round the rest away.
template <typename C>
struct Standard {
  C shift, rest, scale;

  template <typename V>
  V operator()(V x) const {
    return ((x - shift) - rest) * scale;
  }
};

/// With the mean and the variance of the row itself, computed one after the other: no digits cancel.
template <typename C>
Standard<C> standard(const C* row, std::int64_t count, double epsilon) {
  const auto length = static_cast<double>(count);
  const auto value = [](auto x) { return std::array<decltype(x), 1>{x}; };
  const C shift = static_cast<C>(sum<1>(count, value, row)[0] / length);
  const auto moments = [shift](auto x) {
    const auto d = x - shift;
    return std::array<std::remove_const_t<decltype(d)>, 2>{d, d * d};
  };
  const auto [first, second] = sum<2>(count, moments, row);
  const double rest = first / length;
  const double variance = std::max(second / length - rest * rest, 0.0);
  return {shift, static_cast<C>(rest), static_cast<C>(1 / std::sqrt(variance + epsilon))};
}

/// The factor that makes the mean of a row's squares 1, or a little less because of epsilon.
template <typename C>
C root_scale(const C* row, std::int64_t count, double epsilon) {
  const double squares = sum<1>(count, [](auto x) { return std::array<decltype(x), 1>{x * x}; }, row)[0];
  return static_cast<C>(1 / std::sqrt(squares / static_cast<double>(count) + epsilon));
}

/// y[i] = standard(x[i]) * weight[i] + bias[i]. `weight` and `bias` may be null.
template <typename C, typename Function>
void affine(std::int64_t count, const Function standard, const C* x, const C* weight, const C* bias, C* y) {
  if (weight && bias) {
    for (std::int64_t i = 0; i < count; ++i) y[i] = standard(x[i]) * weight[i] + bias[i];
  } else if (weight) {
    for (std::int64_t i = 0; i < count; ++i) y[i] = standard(x[i]) * weight[i];
  } else if (bias) {
    for (std::int64_t i = 0; i < count; ++i) y[i] = standard(x[i]) + bias[i];
  } else {
    for (std::int64_t i = 0; i < count; ++i) y[i] = standard(x[i]);
  }
}

}  // namespace opgate::rows

// Products of small matrices on the CPU, in registers.
#pragma once

#include <cstdint>
#include <cstring>

namespace opgate::ops::deform_conv2d {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kRows = 12;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32, kRows = 6;
#else
constexpr int kVectorBytes = 16, kRows = 6;
#endif

/// So many numbers of a row are computed together.
template <typename C>
constexpr std::int64_t kColumns = 2 * kVectorBytes / sizeof(C);

/// Rounds up to a multiple of kColumns.
template <typename C>
constexpr std::int64_t padded(std::int64_t count) {
  return (count + kColumns<C> - 1) / kColumns<C> * kColumns<C>;
}

/// c[r, j] += the sum over k of a[r, k] b[k, j], for kRows rows and kColumns columns. a[r, k] is at r * a_row + k *
/// a_k, b[k, j] at k * b_k + j, c[r, j] at r * c_row + j.
template <typename C>
[[gnu::always_inline]] inline void add_product(std::int64_t depth, const C* __restrict__ a, std::int64_t a_row,
                                               std::int64_t a_k, const C* __restrict__ b, std::int64_t b_k,
                                               C* __restrict__ c, std::int64_t c_row) {
  using Vector [[gnu::vector_size(kVectorBytes)]] = C;
  constexpr std::int64_t kWidth = kVectorBytes / sizeof(C);
  const auto load = [](const C* from) {
    Vector vector;
    std::memcpy(&vector, from, sizeof(vector));
    return vector;
  };
  Vector sums[kRows][2] = {};
  for (std::int64_t k = 0; k < depth; ++k) {
    const Vector b0 = load(b + k * b_k), b1 = load(b + k * b_k + kWidth);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const C number = a[r * a_row + k * a_k];
      sums[r][0] += number * b0;
      sums[r][1] += number * b1;
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) {
      C* const to = c + r * c_row + v * kWidth;
      const Vector sum = load(to) + sums[r][v];
      std::memcpy(to, &sum, sizeof(sum));
    }
  }
}

}  // namespace
}  // namespace opgate::ops::deform_conv2d

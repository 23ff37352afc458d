// The loops of the exact filters: rows that are resized horizontally, and rows that are combined to one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "filter_taps.h"

namespace opgate::ops::image_preprocess {

/// Both passes of a filter together have weights of 22 bits: those of Pillow in each pass, those of OpenCV 11 in each.
inline constexpr int kWeightBits = 22;
inline constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);

inline std::uint8_t clipped(std::int32_t value) { return static_cast<std::uint8_t>(std::clamp(value, 0, 255)); }

/// The nearest byte, the even one of two.
inline std::uint8_t rounded_byte(float value) { return clipped(static_cast<std::int32_t>(std::nearbyint(value))); }

/// The sum of a pixel's or a value's taps, as it is kept between the passes: u8 of `bits`-bit weights, or i32.
template <int bits>
void keep(std::int32_t sum, std::uint8_t* to) {
  *to = clipped(sum >> bits);
}
template <int bits>
void keep(std::int32_t sum, std::int32_t* to) {
  *to = sum;
}

/// Resizes a row of grey values.
template <int bits, typename Resized>
void filter_values(const std::uint8_t* row, const FilterTable& table, Resized* to) {
  constexpr std::int32_t half = bits > 0 ? 1 << (bits - 1) : 0;
  for (int i = 0; i < table.size(); ++i) {
    const std::uint8_t* value = row + table.first(i);
    const std::int32_t* weights = table.weights(i);
    std::int32_t sum = half;
    for (int k = 0; k < table.count(i); ++k) sum += weights[k] * value[k];
    keep<bits>(sum, to + i);
  }
}

// GCC's and Clang's vectors: SSE and AVX on x86-64, NEON on ARM.
using Int4 = std::int32_t __attribute__((vector_size(16)));
using Byte4 = std::uint8_t __attribute__((vector_size(4)));
using Int8 = std::int32_t __attribute__((vector_size(32)));
using Byte8 = std::uint8_t __attribute__((vector_size(8)));
using Double8 = double __attribute__((vector_size(64)));

template <typename Vector>
Vector loaded(const void* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

/// Resizes a row of RGB pixels. It reads a byte behind the last pixel, and writes one value behind it.
template <int bits, typename Resized>
void filter_pixels(const std::uint8_t* row, const FilterTable& table, Resized* to) {
  constexpr std::int32_t half = bits > 0 ? 1 << (bits - 1) : 0;
  for (int i = 0; i < table.size(); ++i, to += 3) {
    const std::uint8_t* pixel = row + std::ptrdiff_t{3} * table.first(i);
    const std::int32_t* weights = table.weights(i);
    Int4 sum = {half, half, half, half};
    for (int k = 0; k < table.count(i); ++k, pixel += 3)
      sum += __builtin_convertvector(loaded<Byte4>(pixel), Int4) * weights[k];
    for (int c = 0; c < 3; ++c) keep<bits>(sum[c], to + c);
  }
}

/// The sum of a second pass in 32 bits. It is large enough for filters whose weights add up to less than 2 without their
/// signs.
struct Int32Sum {
  using Vector = Int8;

  static Vector start() { return Vector{} + kHalf; }
  static Vector values(const std::uint8_t* from) { return __builtin_convertvector(loaded<Byte8>(from), Vector); }
  static Vector values(const std::int32_t* from) { return loaded<Vector>(from); }
  static std::uint8_t byte(std::int32_t sum) { return clipped(sum >> kWeightBits); }
};

/// The same in f64, which adds up integers of up to 53 bits exactly.
struct DoubleSum {
  using Vector = Double8;

  static Vector start() { return Vector{} + double{kHalf}; }
  static Vector values(const std::int32_t* from) { return __builtin_convertvector(loaded<Int8>(from), Vector); }
  static std::uint8_t byte(double sum) {
    return static_cast<std::uint8_t>(std::clamp(sum * (1.0 / (1 << kWeightBits)), 0.0, 255.0));
  }
};

/// Writes the weighted sums of `count` rows with `length` values. All rows have room for a vector more.
template <typename Sum, typename Resized>
void combine_rows(const Resized* const* rows, const std::int32_t* weights, int count, std::size_t length,
                  std::uint8_t* out) {
  constexpr std::size_t kLanes = 8;
  using Vector = typename Sum::Vector;
  const auto write = [&](const Vector& sum, std::size_t x) {
    const std::size_t some = std::min(kLanes, length - x);
    for (std::size_t i = 0; i < some; ++i) out[x + i] = Sum::byte(sum[i]);
  };
  std::size_t x = 0;
  for (; x + 2 * kLanes <= length; x += 2 * kLanes) {
    Vector low = Sum::start(), high = Sum::start();
    for (int k = 0; k < count; ++k) {
      low += Sum::values(rows[k] + x) * weights[k];
      high += Sum::values(rows[k] + x + kLanes) * weights[k];
    }
    for (std::size_t i = 0; i < kLanes; ++i) out[x + i] = Sum::byte(low[i]);
    for (std::size_t i = 0; i < kLanes; ++i) out[x + kLanes + i] = Sum::byte(high[i]);
  }
  for (; x < length; x += kLanes) {
    Vector sum = Sum::start();
    for (int k = 0; k < count; ++k) sum += Sum::values(rows[k] + x) * weights[k];
    write(sum, x);
  }
}

/// The first pass of OpenCV's bilinear filter. The sums have 19 bits, of which the second pass uses the upper 15.
template <int channels>
void linear_row(const std::uint8_t* row, const std::vector<LinearTap>& taps, std::int16_t* to) {
  for (const LinearTap& tap : taps) {
    const std::uint8_t* first = row + channels * tap.first;
    const std::uint8_t* second = row + channels * tap.second;
    for (int c = 0; c < channels; ++c)
      *to++ = static_cast<std::int16_t>((first[c] * tap.weight[0] + second[c] * tap.weight[1]) >> 4);
  }
}

/// The second pass.
inline void blend_linear(const std::int16_t* first, const std::int16_t* second, const std::int32_t* weight,
                         std::size_t length, std::uint8_t* out) {
  const auto of_first = static_cast<std::int16_t>(weight[0]), of_second = static_cast<std::int16_t>(weight[1]);
  for (std::size_t i = 0; i < length; ++i) {
    const int sum = (first[i] * of_first >> 16) + (second[i] * of_second >> 16);
    out[i] = static_cast<std::uint8_t>((sum + 2) >> 2);
  }
}

/// a b, rounded to f32 also where the processor could add to it first: OpenCV rounds it.
inline float rounded_product(float a, float b) {
#ifdef __clang__
#pragma clang fp contract(off)
  return a * b;
#else
  return __builtin_assoc_barrier(a * b);
#endif
}

/// The first pass of OpenCV's INTER_AREA: the sums of the parts of the source pixels.
inline void area_row(const std::uint8_t* row, const std::vector<std::vector<AreaTap>>& taps, int channels, float* to) {
  for (const std::vector<AreaTap>& pixel : taps) {
    for (int c = 0; c < channels; ++c) {
      float sum = 0;
      for (const AreaTap& tap : pixel) sum += rounded_product(row[channels * tap.source + c], tap.weight);
      *to++ = sum;
    }
  }
}

/// The second pass, row by row.
inline void add_weighted(const float* row, float weight, std::size_t length, float* sum) {
  for (std::size_t i = 0; i < length; ++i) sum[i] += rounded_product(row[i], weight);
}

/// Adds to each sum the values of the next `across` pixels.
inline void add_blocks(const std::uint8_t* row, int across, int channels, std::vector<std::int32_t>& sums) {
  const std::size_t step = static_cast<std::size_t>(channels);
  for (std::size_t i = 0; i < sums.size(); i += step) {
    for (int k = 0; k < across; ++k) {
      for (std::size_t c = 0; c < step; ++c) sums[i + c] += *row++;
    }
  }
}

}  // namespace opgate::ops::image_preprocess

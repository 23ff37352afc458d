// The loops of the exact filters: rows that are resized horizontally, and rows that are combined to one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "filter_taps.h"
#include "rounding.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace opgate::ops::image_preprocess {

/// Both passes of a filter together have weights of 22 bits: those of Pillow in each pass, those of OpenCV 11 in each.
inline constexpr int kWeightBits = 22;
inline constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);

inline std::uint8_t clipped(std::int32_t value) { return static_cast<std::uint8_t>(std::clamp(value, 0, 255)); }

/// The nearest byte, the even one of two.
inline std::uint8_t rounded_byte(float value) { return clipped(static_cast<std::int32_t>(std::nearbyint(value))); }

// What a first pass keeps of a sum: a byte of `bits`-bit weights, all of it, or, for OpenCV's bilinear filter, its
// upper 15 bits of 19.
template <int bits>
void keep(std::int32_t sum, std::uint8_t* to) {
  *to = clipped(sum >> bits);
}
template <int bits>
void keep(std::int32_t sum, std::int32_t* to) {
  *to = sum;
}
template <int bits>
void keep(std::int32_t sum, std::int16_t* to) {
  *to = static_cast<std::int16_t>(sum >> 4);
}

template <int bits>
constexpr std::int32_t kFirstHalf = bits > 0 ? 1 << (bits - 1) : 0;

/// Resizes a row of grey values.
template <int bits, typename Resized>
void filter_values(const std::uint8_t* row, const FilterTable& table, Resized* to) {
  for (int i = 0; i < table.size(); ++i) {
    const std::uint8_t* value = row + table.first(i);
    const std::int32_t* weights = table.weights(i);
    const int count = table.count(i);
    std::int32_t sum = kFirstHalf<bits>;
    for (int k = 0; k < count; ++k) sum += weights[k] * value[k];
    keep<bits>(sum, to + i);
  }
}

#ifdef __AVX2__

/// The sums of R, G, B of `count` pixels: four pixels a step, with the 16 bits of `weights`.
struct PixelSum {
  __m256i sum = _mm256_setzero_si256();

  /// R, G and B of two pixels beside one another, in each half of the register.
  static __m256i pairs(const std::uint8_t* pixel) {
    const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pixel));
    const __m256i places = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, 6, -1, 9, -1, 7,
                                            -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(sixteen), places);
  }

  void add(__m256i pixels, const std::int16_t* weights) {
    const __m128i four = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(weights));
    const __m256i spread =
        _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(four), _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pixels, spread));
  }

  __m128i value() const { return _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1)); }
};

/// Resizes a row of RGB pixels. It reads up to UprightRows::kSlack bytes behind the last pixel.
template <int bits, typename Resized>
void filter_pixels(const std::uint8_t* row, const FilterTable& table, Resized* to) {
  for (int i = 0; i < table.size(); ++i, to += 3) {
    const std::uint8_t* pixel = row + std::ptrdiff_t{3} * table.first(i);
    const std::int16_t *low = table.low(i), *high = table.high(i);
    const int count = table.count(i);
    PixelSum of_low, of_high;
    for (int k = 0; k < count; k += 4, pixel += 12) {
      const __m256i pixels = PixelSum::pairs(pixel);
      of_low.add(pixels, low + k);
      of_high.add(pixels, high + k);
    }
    std::int32_t sums[4];
    const __m128i sum = _mm_add_epi32(_mm_slli_epi32(of_high.value(), FilterTable::kLowBits), of_low.value());
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sums), _mm_add_epi32(sum, _mm_set1_epi32(kFirstHalf<bits>)));
    for (int c = 0; c < 3; ++c) keep<bits>(sums[c], to + c);
  }
}

#else

template <int bits, typename Resized>
void filter_pixels(const std::uint8_t* row, const FilterTable& table, Resized* to) {
  for (int i = 0; i < table.size(); ++i, to += 3) {
    const std::uint8_t* pixel = row + std::ptrdiff_t{3} * table.first(i);
    const std::int32_t* weights = table.weights(i);
    const int count = table.count(i);
    std::int32_t sums[3] = {kFirstHalf<bits>, kFirstHalf<bits>, kFirstHalf<bits>};
    for (int k = 0; k < count; ++k, pixel += 3) {
      for (int c = 0; c < 3; ++c) sums[c] += weights[k] * pixel[c];
    }
    for (int c = 0; c < 3; ++c) keep<bits>(sums[c], to + c);
  }
}

#endif

/// Writes `length` weighted sums of `count` rows, whose weights are those of pixel y in `table`. `Sum` is the type in
/// which they are added up: i32 is large enough for bytes, and for OpenCV's cubic filter. f64 adds up integers of up to
/// 53 bits exactly. The rows and `out` have room for UprightRows::kSlack values more.
template <typename Sum, typename Resized>
void combine_rows(const Resized* const* rows, const FilterTable& table, int y, std::size_t length, std::uint8_t* out) {
  constexpr std::size_t kTogether = 16;
  const std::int32_t* weights = table.weights(y);
  const int count = table.count(y);
  for (std::size_t x = 0; x < length; x += kTogether) {
    Sum sums[kTogether];
    std::fill(sums, sums + kTogether, Sum{kHalf});
    for (int k = 0; k < count; ++k) {
      const Resized* const row = rows[k] + x;
      const Sum weight = weights[k];
      for (std::size_t i = 0; i < kTogether; ++i) sums[i] += weight * static_cast<Sum>(row[i]);
    }
    for (std::size_t i = 0; i < kTogether; ++i) {
      if constexpr (std::is_same_v<Sum, double>) {
        out[x + i] = static_cast<std::uint8_t>(std::clamp(sums[i] * (1.0 / (1 << kWeightBits)), 0.0, 255.0));
      } else {
        out[x + i] = clipped(sums[i] >> kWeightBits);
      }
    }
  }
}

#ifdef __AVX2__

/// The same for rows of bytes: two rows a step, with weights of twice 16 bits.
template <>
inline void combine_rows<std::int32_t, std::uint8_t>(const std::uint8_t* const* rows, const FilterTable& table, int y,
                                                     std::size_t length, std::uint8_t* out) {
  const auto bytes = [](const std::uint8_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); };
  const auto pair = [](const std::int16_t* weights) {
    std::int32_t both;
    std::memcpy(&both, weights, sizeof both);
    return _mm256_set1_epi32(both);
  };
  const auto total = [](__m256i low, __m256i high) {
    const __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high, FilterTable::kLowBits), low);
    return _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(kHalf)), kWeightBits);
  };
  const std::int16_t *low = table.low(y), *high = table.high(y);
  const int count = table.count(y);
  for (std::size_t x = 0; x < length; x += 16) {
    __m256i low_left{}, low_right{}, high_left{}, high_right{};
    for (int k = 0; k < count; k += 2) {
      const __m128i above = bytes(rows[k] + x), below = bytes(rows[k + 1 < count ? k + 1 : k] + x);
      const __m256i left = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(above, below));
      const __m256i right = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(above, below));
      const __m256i of_low = pair(low + k), of_high = pair(high + k);
      low_left = _mm256_add_epi32(low_left, _mm256_madd_epi16(left, of_low));
      low_right = _mm256_add_epi32(low_right, _mm256_madd_epi16(right, of_low));
      high_left = _mm256_add_epi32(high_left, _mm256_madd_epi16(left, of_high));
      high_right = _mm256_add_epi32(high_right, _mm256_madd_epi16(right, of_high));
    }
    const __m256i words = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(total(low_left, high_left), total(low_right, high_right)), _MM_SHUFFLE(3, 1, 2, 0));
    const __m128i packed = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + x), packed);
  }
}

#endif

/// The second pass of OpenCV's bilinear filter.
inline void blend_linear(const std::int16_t* first, const std::int16_t* second, const std::int32_t* weight,
                         std::size_t length, std::uint8_t* out) {
  const auto of_first = static_cast<std::int16_t>(weight[0]), of_second = static_cast<std::int16_t>(weight[1]);
  for (std::size_t i = 0; i < length; ++i) {
    const int sum = (first[i] * of_first >> 16) + (second[i] * of_second >> 16);
    out[i] = static_cast<std::uint8_t>((sum + 2) >> 2);
  }
}

OPGATE_ROUND_EVERY_STEP

/// The first pass of OpenCV's INTER_AREA: the sums of the parts of the source pixels.
template <int channels>
void area_row(const std::uint8_t* row, const std::vector<std::vector<AreaTap>>& taps, float* to) {
  for (const std::vector<AreaTap>& pixel : taps) {
    float sums[channels] = {};
    for (const AreaTap *tap = pixel.data(), *end = tap + pixel.size(); tap != end; ++tap) {
      for (int c = 0; c < channels; ++c) sums[c] += static_cast<float>(row[channels * tap->source + c]) * tap->weight;
    }
    for (int c = 0; c < channels; ++c) *to++ = sums[c];
  }
}

/// The second pass, row by row.
inline void add_weighted(const float* row, float weight, std::size_t length, float* sum) {
  for (std::size_t i = 0; i < length; ++i) sum[i] += row[i] * weight;
}

OPGATE_ROUND_AS_BEFORE

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

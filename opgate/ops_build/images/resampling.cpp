#include "images/resampling.h"

#include <algorithm>
#include <cstring>
#include <utility>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace opgate::images {

std::vector<Tap> bilinear_taps(int from, int to) { return bilinear_taps(from, to, 0, to); }

std::vector<Tap> bilinear_taps(int from, int to, int first, int count) {
  std::vector<Tap> taps(static_cast<std::size_t>(count));
  const double step = static_cast<double>(from) / to;
  for (int i = 0; i < count; ++i) taps[static_cast<std::size_t>(i)] = bilinear_tap(first + i, step, from);
  return taps;
}

void blend_rows(const std::uint8_t* first, const std::uint8_t* second, float weight, int width, float* out) {
  const std::size_t count = 3 * static_cast<std::size_t>(width);
  for (std::size_t i = 0; i < count; ++i) {
    const auto a = static_cast<float>(first[i]);
    out[i] = a + (static_cast<float>(second[i]) - a) * weight;
  }
  std::copy_n(out + count - 3, 3, out + count);
}

RowResampler::RowResampler(std::vector<Tap> taps, const Normalization& normalization) : taps_(std::move(taps)) {
  for (int c = 0; c < 3; ++c) {
    scale_[c] = normalization.scale[c];
    bias_[c] = normalization.bias[c];
  }
}

template <typename Value>
void RowResampler::write_row(float* const out[3], std::ptrdiff_t stride, const Value& value_of) const {
  const auto width = static_cast<std::ptrdiff_t>(taps_.size());
  std::ptrdiff_t x = 0;
  if (stride == 1) {
    for (; x + 4 <= width; x += 4) {
      store_four(value_of(x), value_of(x + 1), value_of(x + 2), value_of(x + 3), x, out);
    }
  }
  for (; x < width; ++x) {
    const Float4 pixel = value_of(x);
    for (int c = 0; c < 3; ++c) out[c][x * stride] = pixel[c];
  }
}

void RowResampler::run(const float* row, float* const out[3], std::ptrdiff_t stride) const {
  write_row(out, stride, [&](std::ptrdiff_t x) { return value(row, x); });
}

void RowResampler::run(const std::uint8_t* first, const std::uint8_t* second, float weight, float* const out[3]) const {
  write_row(out, 1, [&](std::ptrdiff_t x) { return value(first, second, weight, x); });
}

RowResampler::Float4 RowResampler::load(const float* from) {
  Float4 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// Loads four bytes as four values.
RowResampler::Float4 RowResampler::load(const std::uint8_t* from) {
  Float4 value{};
  for (int i = 0; i < 4; ++i) value[i] = static_cast<float>(from[i]);
  return value;
}

void RowResampler::store(float* to, Float4 value) { std::memcpy(to, &value, sizeof value); }

/// Loads a pixel as four values. The fourth one belongs to the next pixel and is not used.
RowResampler::Float4 RowResampler::value(const float* row, std::ptrdiff_t x) const {
  const Tap tap = taps_[static_cast<std::size_t>(x)];
  const float* pixel = row + 3 * static_cast<std::ptrdiff_t>(tap.first);
  const Float4 first = load(pixel);
  return (first + (load(pixel + 3) - first) * tap.weight) * scale_ + bias_;
}

/// Behind the two pixels of a tap there is a third one in the row, because each pixel of the result stands for more
/// than three.
RowResampler::Float4 RowResampler::value(const std::uint8_t* first, const std::uint8_t* second, float weight,
                                         std::ptrdiff_t x) const {
  const Tap tap = taps_[static_cast<std::size_t>(x)];
  const auto at = 3 * static_cast<std::ptrdiff_t>(tap.first);
#ifdef __AVX2__
  const auto eight = [](const std::uint8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  };
  const __m256 above = eight(first + at);
  const __m256 both = above + (eight(second + at) - above) * _mm256_set1_ps(weight);
  const Float4 left = _mm256_castps256_ps128(both);
  const Float4 right =
      _mm256_castps256_ps128(_mm256_permutevar8x32_ps(both, _mm256_setr_epi32(3, 4, 5, 6, 0, 0, 0, 0)));
#else
  const auto blended = [&](std::ptrdiff_t byte) {
    const Float4 above = load(first + byte);
    return above + (load(second + byte) - above) * weight;
  };
  const Float4 left = blended(at), right = blended(at + 3);
#endif
  return (left + (right - left) * tap.weight) * scale_ + bias_;
}

void RowResampler::store_four(Float4 a, Float4 b, Float4 c, Float4 d, std::ptrdiff_t x, float* const out[3]) {
  const Float4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Float4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Float4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Float4 cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  store(out[0] + x, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
  store(out[1] + x, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
  store(out[2] + x, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
}

}  // namespace opgate::images

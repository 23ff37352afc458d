#include "images/resampling.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace opgate::images {

std::vector<Tap> bilinear_taps(int from, int to) {
  std::vector<Tap> taps(static_cast<std::size_t>(to));
  const double step = static_cast<double>(from) / to;
  for (int i = 0; i < to; ++i) taps[static_cast<std::size_t>(i)] = bilinear_tap(i, step, from);
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

void RowResampler::run(const float* row, float* const out[3], std::ptrdiff_t stride) const {
  const auto width = static_cast<std::ptrdiff_t>(taps_.size());
  std::ptrdiff_t x = 0;
  if (stride == 1) {
    for (; x + 4 <= width; x += 4) store_four(row, x, out);
  }
  for (; x < width; ++x) {
    const Float4 pixel = value(row, x);
    for (int c = 0; c < 3; ++c) out[c][x * stride] = pixel[c];
  }
}

RowResampler::Float4 RowResampler::load(const float* from) {
  Float4 value;
  std::memcpy(&value, from, sizeof value);
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

void RowResampler::store_four(const float* row, std::ptrdiff_t x, float* const out[3]) const {
  const Float4 a = value(row, x), b = value(row, x + 1), c = value(row, x + 2), d = value(row, x + 3);
  const Float4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Float4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Float4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Float4 cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  store(out[0] + x, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
  store(out[1] + x, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
  store(out[2] + x, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
}

}  // namespace opgate::images

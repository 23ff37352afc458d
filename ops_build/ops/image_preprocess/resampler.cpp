#include "resampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace opgate::ops {
namespace {

// GCC's and Clang's vectors: SSE on x86-64, NEON on ARM.
using Float4 = float __attribute__((vector_size(16)));
using Int4 = int __attribute__((vector_size(16)));

Float4 load(const float* from) {
  Float4 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void store(float* to, Float4 value) { std::memcpy(to, &value, sizeof value); }

/// Between the RGB pixels of a row at a tap's two places. Lane 3 holds whatever follows.
Float4 between(const float* row, const Tap& tap) {
  const Float4 first = load(row + 3 * static_cast<std::ptrdiff_t>(tap.first));
  const Float4 second = load(row + 3 * static_cast<std::ptrdiff_t>(tap.second));
  return first + (second - first) * tap.weight;
}

/// The row of RGB pixels `rgb` (floats, one value of slack at its end), resampled into three planes `planes + k * width`.
void resample_across(const float* rgb, const std::vector<Tap>& taps, float* planes) {
  const auto width = static_cast<std::ptrdiff_t>(taps.size());
  std::ptrdiff_t x = 0;
  for (; x + 4 <= width; x += 4) {
    const Float4 a = between(rgb, taps[x]);
    const Float4 b = between(rgb, taps[x + 1]);
    const Float4 c = between(rgb, taps[x + 2]);
    const Float4 d = between(rgb, taps[x + 3]);
    const Float4 ab_low = __builtin_shuffle(a, b, Int4{0, 4, 1, 5});
    const Float4 cd_low = __builtin_shuffle(c, d, Int4{0, 4, 1, 5});
    const Float4 ab_high = __builtin_shuffle(a, b, Int4{2, 6, 3, 7});
    const Float4 cd_high = __builtin_shuffle(c, d, Int4{2, 6, 3, 7});
    store(planes + x, __builtin_shuffle(ab_low, cd_low, Int4{0, 1, 4, 5}));
    store(planes + width + x, __builtin_shuffle(ab_low, cd_low, Int4{2, 3, 6, 7}));
    store(planes + 2 * width + x, __builtin_shuffle(ab_high, cd_high, Int4{0, 1, 4, 5}));
  }
  for (; x < width; ++x) {
    const Float4 pixel = between(rgb, taps[x]);
    for (std::ptrdiff_t k = 0; k < 3; ++k) planes[k * width + x] = pixel[k];
  }
}

/// Blends two resampled rows of one channel, normalizes and writes them `column` values apart.
void blend(const float* first, const float* second, float weight, float scale, float bias, std::ptrdiff_t width, float* out,
           std::ptrdiff_t column) {
  const auto value = [=](std::ptrdiff_t x) { return (first[x] + (second[x] - first[x]) * weight) * scale + bias; };
  if (column == 1) {
    for (std::ptrdiff_t x = 0; x < width; ++x) out[x] = value(x);
  } else {
    for (std::ptrdiff_t x = 0; x < width; ++x) out[x * column] = value(x);
  }
}

}  // namespace

std::vector<Tap> bilinear_taps(int from, int to) {
  std::vector<Tap> taps(static_cast<std::size_t>(to));
  const double step = static_cast<double>(from) / to;
  for (int i = 0; i < to; ++i) {
    const double place = std::clamp((i + 0.5) * step - 0.5, 0.0, static_cast<double>(from - 1));
    const int first = static_cast<int>(place);
    taps[static_cast<std::size_t>(i)] = {first, std::min(first + 1, from - 1), static_cast<float>(place - first)};
  }
  return taps;
}

codecs::DecodeStatus resample(codecs::Decoder& decoder, int source_width, int source_height, int width, int height,
                              const Normalization& normalization, const Planes& planes) {
  using codecs::DecodeStatus;
  const std::vector<Tap> across = bilinear_taps(source_width, width);
  const std::vector<Tap> down = bilinear_taps(source_height, height);
  const std::size_t source_values = std::size_t{3} * static_cast<std::size_t>(source_width);
  const std::size_t row_values = std::size_t{3} * static_cast<std::size_t>(width);
  std::vector<std::uint8_t> bytes(source_values);
  std::vector<float> row(source_values + 1);  // a pixel is loaded as four values
  std::vector<float> kept(2 * row_values);    // source row y lies in half y % 2
  const auto half = [&](int y) { return kept.data() + static_cast<std::size_t>(y % 2) * row_values; };

  int next = 0;  // the next source row
  const auto read_to = [&](int last, int wanted_from) {
    for (; next <= last; ++next) {
      if (const DecodeStatus status = decoder.read_row(bytes.data()); status != DecodeStatus::good) return status;
      if (next < wanted_from) continue;
      std::copy(bytes.begin(), bytes.end(), row.begin());
      resample_across(row.data(), across, half(next));
    }
    return DecodeStatus::good;
  };
  for (int y = 0; y < height; ++y) {
    const Tap& tap = down[static_cast<std::size_t>(y)];
    if (const DecodeStatus status = read_to(tap.second, tap.first); status != DecodeStatus::good) return status;
    float* out = planes.data + planes.strides.origin + y * planes.strides.row;
    for (int k = 0; k < 3; ++k) {
      const std::ptrdiff_t channel = static_cast<std::ptrdiff_t>(normalization.channel[k]) * width;
      blend(half(tap.first) + channel, half(tap.second) + channel, tap.weight, normalization.scale[k], normalization.bias[k],
            width, out + k * planes.plane, planes.strides.column);
    }
  }
  // Rows that no output needs are read all the same: that is how a truncated file is found out.
  if (const DecodeStatus status = read_to(source_height - 1, source_height); status != DecodeStatus::good) return status;
  return decoder.finish();
}

}  // namespace opgate::ops

#include "resampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace opgate::ops {
namespace {

// GCC's and Clang's vectors: SSE on x86-64, NEON on ARM.
using Float4 = float __attribute__((vector_size(16)));

Float4 load(const float* from) {
  Float4 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void store(float* to, Float4 value) { std::memcpy(to, &value, sizeof value); }

/// Between two rows of bytes.
void blend(const std::uint8_t* first, const std::uint8_t* second, float weight, std::size_t count, float* out) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto a = static_cast<float>(first[i]);
    out[i] = a + (static_cast<float>(second[i]) - a) * weight;
  }
}

/// Resamples a row of RGB pixels. At its end lie its last pixel once more and one value of slack: pixels are loaded as
/// four values, and the fourth lane holds whatever follows.
class Across {
 public:
  Across(std::vector<Tap> taps, const Normalization& normalization) : taps_(std::move(taps)) {
    for (int c = 0; c < 3; ++c) {
      scale_[c] = normalization.scale[c];
      bias_[c] = normalization.bias[c];
    }
  }

  void run(const float* row, const Planes& planes, std::ptrdiff_t offset) const {
    float* const out[3] = {planes.data[0] + offset, planes.data[1] + offset, planes.data[2] + offset};
    const auto width = static_cast<std::ptrdiff_t>(taps_.size());
    std::ptrdiff_t x = 0;
    if (planes.strides.column == 1) {
      for (; x + 4 <= width; x += 4) store_four(row, x, out);
    }
    for (; x < width; ++x) {
      const Float4 pixel = value(row, x);
      for (int c = 0; c < 3; ++c) out[c][x * planes.strides.column] = pixel[c];
    }
  }

 private:
  Float4 value(const float* row, std::ptrdiff_t x) const {
    const Tap tap = taps_[static_cast<std::size_t>(x)];
    const float* pixel = row + 3 * static_cast<std::ptrdiff_t>(tap.first);
    const Float4 first = load(pixel);
    return (first + (load(pixel + 3) - first) * tap.weight) * scale_ + bias_;
  }

  void store_four(const float* row, std::ptrdiff_t x, float* const out[3]) const {
    const Float4 a = value(row, x), b = value(row, x + 1), c = value(row, x + 2), d = value(row, x + 3);
    const Float4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const Float4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const Float4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const Float4 cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    store(out[0] + x, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
    store(out[1] + x, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
    store(out[2] + x, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
  }

  std::vector<Tap> taps_;
  Float4 scale_{}, bias_{};
};

}  // namespace

std::vector<Tap> bilinear_taps(int from, int to) {
  std::vector<Tap> taps(static_cast<std::size_t>(to));
  const double step = static_cast<double>(from) / to;
  for (int i = 0; i < to; ++i) {
    const double place = std::clamp((i + 0.5) * step - 0.5, 0.0, static_cast<double>(from - 1));
    const int first = static_cast<int>(place);
    taps[static_cast<std::size_t>(i)] = {first, static_cast<float>(place - first)};
  }
  return taps;
}

codecs::DecodeStatus resample(codecs::Decoder& decoder, int source_width, int source_height, int width, int height,
                              const Normalization& normalization, const Planes& planes) {
  using codecs::DecodeStatus;
  const Across across(bilinear_taps(source_width, width), normalization);
  const std::vector<Tap> down = bilinear_taps(source_height, height);
  const std::size_t count = std::size_t{3} * static_cast<std::size_t>(source_width);
  std::vector<std::uint8_t> kept(2 * count);  // source row y lies in half y % 2
  std::vector<float> row(count + 4);
  const auto half = [&](int y) { return kept.data() + static_cast<std::size_t>(y % 2) * count; };

  int next = 0;  // the next source row
  const auto read_to = [&](int last) {
    for (; next <= last; ++next) {
      if (const DecodeStatus status = decoder.read_row(half(next)); status != DecodeStatus::good) return status;
    }
    return DecodeStatus::good;
  };
  for (int y = 0; y < height; ++y) {
    const Tap tap = down[static_cast<std::size_t>(y)];
    const int second = std::min(tap.first + 1, source_height - 1);
    if (const DecodeStatus status = read_to(second); status != DecodeStatus::good) return status;
    blend(half(tap.first), half(second), tap.weight, count, row.data());
    std::copy_n(row.data() + count - 3, 3, row.data() + count);
    across.run(row.data(), planes, planes.strides.origin + y * planes.strides.row);
  }
  // Rows that no output needs are read all the same: that is how a truncated file is found out.
  if (const DecodeStatus status = read_to(source_height - 1); status != DecodeStatus::good) return status;
  return decoder.finish();
}

}  // namespace opgate::ops

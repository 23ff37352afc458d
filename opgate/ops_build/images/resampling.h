// Resizes a picture (bilinear), normalizes it and writes it as planes, row by row, on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "images/normalization.h"
#include "images/taps.h"

namespace opgate::images {

/// The taps of all pixels of a row or a column. Both sizes are at least 1.
std::vector<Tap> bilinear_taps(int from, int to);

/// The taps of `count` pixels from `first` on.
std::vector<Tap> bilinear_taps(int from, int to, int first, int count);

/// The number of floats that blend_rows writes for a row of `width` pixels.
constexpr std::size_t blended_size(int width) { return 3 * static_cast<std::size_t>(width) + 4; }

/// Blends two rows of `width` >= 1 RGB pixels. `weight` is that of the second row. It repeats the last pixel once and
/// leaves room for one value more, because RowResampler loads them.
void blend_rows(const std::uint8_t* first, const std::uint8_t* second, float weight, int width, float* out);

/// Resamples rows of pixels horizontally and normalizes them.
class RowResampler {
 public:
  RowResampler(std::vector<Tap> taps, const Normalization& normalization);

  /// `row` comes from blend_rows. Pixel x goes to out[c][x * stride] for each channel c.
  void run(const float* row, float* const out[3], std::ptrdiff_t stride) const;

  /// Does what blend_rows and run do with stride 1, for rows that become much shorter (skips_pixels). It blends only
  /// the pixels that it needs.
  void run(const std::uint8_t* first, const std::uint8_t* second, float weight, float* const out[3]) const;

  /// Whether the function above can be called for rows of `width` pixels. It is then the faster one.
  bool skips_pixels(int width) const { return static_cast<std::size_t>(width) > 3 * taps_.size(); }

 private:
  // GCC's and Clang's vectors: SSE on x86-64, NEON on ARM.
  using Float4 = float __attribute__((vector_size(16)));

  static Float4 load(const float* from);
  static Float4 load(const std::uint8_t* from);
  static void store(float* to, Float4 value);
  static void store_four(Float4 a, Float4 b, Float4 c, Float4 d, std::ptrdiff_t x, float* const out[3]);
  Float4 value(const float* row, std::ptrdiff_t x) const;
  Float4 value(const std::uint8_t* first, const std::uint8_t* second, float weight, std::ptrdiff_t x) const;

  /// Writes the pixels value_of(x) to out[c][x * stride].
  template <typename Value>
  void write_row(float* const out[3], std::ptrdiff_t stride, const Value& value_of) const;

  std::vector<Tap> taps_;
  Float4 scale_{}, bias_{};
};

}  // namespace opgate::images

// Grey values of RGB pixels, as Pillow's convert("L") has them: the luma of ITU-R 601 in 16-bit fixed point.
#pragma once

#include <cstddef>
#include <cstdint>

namespace opgate::ops::image_preprocess {

inline std::uint8_t grey_of(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((19595u * rgb[0] + 38470u * rgb[1] + 7471u * rgb[2] + 0x8000u) >> 16);
}

/// Gives R, G and B of each of `width` pixels its grey value.
inline void make_grey(std::uint8_t* rgb, int width) {
  for (std::ptrdiff_t x = 0; x < width; ++x) {
    rgb[3 * x] = rgb[3 * x + 1] = rgb[3 * x + 2] = grey_of(rgb + 3 * x);
  }
}

}  // namespace opgate::ops::image_preprocess

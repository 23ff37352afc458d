// How a stored picture is turned to stand upright: the eight values of EXIF's tag Orientation (0x0112).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace opgate::codecs {

/// Stored column c and row r become, with (u, v) = transposed ? (r, c) : (c, r), the upright x = mirrored_x ? w - 1 - u
/// : u and y = mirrored_y ? h - 1 - v : v.
struct Orientation {
  bool transposed = false;
  bool mirrored_x = false;
  bool mirrored_y = false;

  /// Of EXIF's 1..8; upright as stored for every other value.
  static Orientation of_exif(int value);
};

/// Where the stored pixels go in an upright picture, in pixels from its first: origin + c * column + r * row.
struct Strides {
  std::ptrdiff_t origin = 0;
  std::ptrdiff_t column = 1;
  std::ptrdiff_t row = 0;

  /// For an upright picture of width x height whose rows lie `pitch` pixels apart.
  static Strides of(Orientation orientation, std::ptrdiff_t width, std::ptrdiff_t height, std::ptrdiff_t pitch);
};

/// The value of Orientation in a TIFF header with its directories, as JPEG's APP1 (after "Exif\0\0") and PNG's eXIf
/// hold it; 1 where there is none.
int exif_orientation(std::span<const std::uint8_t> tiff);

}  // namespace opgate::codecs

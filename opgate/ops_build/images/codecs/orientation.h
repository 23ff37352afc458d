// Turning a stored picture upright, by the eight values of EXIF's tag Orientation (0x0112).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace opgate::codecs {

/// With (u, v) = transposed ? (r, c) : (c, r), the stored pixel in column c and row r has the upright position
/// x = mirrored_x ? w - 1 - u : u and y = mirrored_y ? h - 1 - v : v.
struct Orientation {
  bool transposed = false;
  bool mirrored_x = false;
  bool mirrored_y = false;

  /// `value` is EXIF's 1..8. Any other value means that the picture is stored upright.
  static Orientation of_exif(int value);
};

/// The position of a stored pixel in the upright picture, as an offset in pixels: origin + c * column + r * row.
struct Strides {
  std::ptrdiff_t origin = 0;
  std::ptrdiff_t column = 1;
  std::ptrdiff_t row = 0;

  /// The upright picture has width x height pixels, and its rows are `pitch` pixels apart.
  static Strides of(Orientation orientation, std::ptrdiff_t width, std::ptrdiff_t height, std::ptrdiff_t pitch);
};

/// The value of Orientation in a TIFF header with its directories, as in JPEG's APP1 (after "Exif\0\0") and PNG's eXIf.
/// 1 if there is none.
int exif_orientation(std::span<const std::uint8_t> tiff);

}  // namespace opgate::codecs

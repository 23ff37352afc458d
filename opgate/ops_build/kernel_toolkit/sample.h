// Bilinear interpolation between the four pixels around a place, for every device.
#pragma once

#include <cmath>
#include <cstdint>

#include "signature/dtype.h"

namespace opgate {

/// The pixel at or before a place greater than -1, in loops that vectorize on every processor: std::floor needs SSE4.1.
/// Truncating x + 1 is no substitute, because just below a pixel the sum is rounded up to the next one.
template <typename C>
OPGATE_HOST_DEVICE std::int32_t pixel_before(C x) {
  return static_cast<std::int32_t>(x) - static_cast<std::int32_t>(x < C(0));
}

/// Where a place lies among the four pixels around it.
template <typename C>
struct Sample {
  std::int64_t x, y;  ///< the pixel above and to the left
  C right, below;     ///< how far the place is from it
  bool inside;        ///< whether one of the four pixels exists; the rest is meant only then

  /// The place at column x and row y of a picture.
  static OPGATE_HOST_DEVICE Sample at(C x, C y, std::int64_t width, std::int64_t height) {
    Sample sample{0, 0, 0, 0, false};
    // A NaN is not inside.
    sample.inside =
        width > 0 && height > 0 && x > C(-1) && y > C(-1) && x < static_cast<C>(width) && y < static_cast<C>(height);
    if (!sample.inside) return sample;
    const C left = std::floor(x), top = std::floor(y);
    sample.x = static_cast<std::int64_t>(left);
    sample.y = static_cast<std::int64_t>(top);
    sample.right = x - left;
    sample.below = y - top;
    return sample;
  }

  /// Calls body(x, y, near_x, near_y, right, below) for each of the four pixels that exists. `right` and `below` say
  /// which pixel it is, `near_x` and `near_y` how near it is along an axis.
  template <typename Body>
  OPGATE_HOST_DEVICE void each_corner(std::int64_t width, std::int64_t height, const Body& body) const {
    if (!inside) return;
    for (int corner = 0; corner < 4; ++corner) {
      const bool to_right = corner % 2, to_below = corner / 2;
      const std::int64_t column = x + to_right, row = y + to_below;
      if (column < 0 || row < 0 || column >= width || row >= height) continue;
      body(column, row, to_right ? right : C(1) - right, to_below ? below : C(1) - below, to_right, to_below);
    }
  }
};

}  // namespace opgate

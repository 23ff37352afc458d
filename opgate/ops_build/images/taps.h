// The source pixels of each pixel in a resized picture, for every device.
#pragma once

#include <cstdint>

#include "signature/dtype.h"

namespace opgate::images {

/// Two neighbouring pixels of the source, `first` and `first + 1`, and the weight of the second one. At the edges the
/// weight is 0.
struct Tap {
  int first;
  float weight;
};

/// The tap of pixel i in bilinear interpolation, with half-pixel centres, clamped at the edges. `from` is the size of
/// the source, and `step` is that size divided by the size of the result.
OPGATE_HOST_DEVICE inline Tap bilinear_tap(int i, double step, int from) {
  const double position = (i + 0.5) * step - 0.5;
  const double inside = position < 0 ? 0 : position > from - 1 ? from - 1 : position;
  const int first = static_cast<int>(inside);
  return {first, static_cast<float>(inside - first)};
}

/// The pixels of the source that a triangle filter weights, and their weights, whose sum is 1.
struct FilterTaps {
  int first, count;
  float start;  ///< the position of the first pixel from the filter's centre, in halves of the triangle's base
  float step;   ///< the distance between two pixels, in the same unit
  float norm;

  OPGATE_HOST_DEVICE float weight(int k) const {
    const float distance = start + static_cast<float>(k) * step;
    const float weight = 1 - (distance < 0 ? -distance : distance);
    return weight > 0 ? weight * norm : 0;
  }
};

/// The filter of pixel i in bilinear interpolation with antialiasing, as Pillow and torch have it: where the source has
/// `step` > 1 pixels for one of the result, the triangle is `step` times as wide. Pixels outside count for nothing.
OPGATE_HOST_DEVICE inline FilterTaps triangle_taps(int i, double step, int from) {
  const double width = step > 1 ? step : 1, centre = (i + 0.5) * step;
  const int begin = static_cast<int>(centre - width + 0.5), end = static_cast<int>(centre + width + 0.5);
  FilterTaps taps{begin < 0 ? 0 : begin, 0, 0, static_cast<float>(1 / width), 1};
  taps.count = (end > from ? from : end) - taps.first;
  taps.start = static_cast<float>((taps.first + 0.5 - centre) / width);
  float sum = 0;
  for (int k = 0; k < taps.count; ++k) sum += taps.weight(k);
  taps.norm = 1 / sum;
  return taps;
}

/// The pixel of the source whose centre is nearest to the centre of pixel i. If two are equally near, it is the lower
/// one: ceil((i + 0.5) * from / to - 1), computed in integers.
OPGATE_HOST_DEVICE inline int nearest_pixel(int i, int from, int to) {
  return static_cast<int>(((2 * std::int64_t{i} + 1) * from - 1) / (2 * std::int64_t{to}));
}

/// Half of a number that is not negative, rounded to the even one of two.
inline std::int64_t half_even(std::int64_t number) { return number / 2 + (number % 2 != 0 && number / 2 % 2 != 0); }

}  // namespace opgate::images

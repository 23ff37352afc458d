// The source pixels of each pixel in a resized picture, for every device.
#pragma once

#include <cstdint>

#include "core/dtype.h"

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

/// The pixel of the source whose centre is nearest to the centre of pixel i. If two are equally near, it is the lower
/// one: ceil((i + 0.5) * from / to - 1), computed in integers.
OPGATE_HOST_DEVICE inline int nearest_pixel(int i, int from, int to) {
  return static_cast<int>(((2 * std::int64_t{i} + 1) * from - 1) / (2 * std::int64_t{to}));
}

}  // namespace opgate::images

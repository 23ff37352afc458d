// Where a resized picture's pixels come from and how they are normalized, for every device.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace opgate::ops {

/// A tap of the bilinear filter: between the source's places `first` and `first + 1`, of which the second weighs
/// `weight`. At the edges the weight is 0.
struct Tap {
  int first;
  float weight;
};

/// Place i of `to` has its centre between these places of `from`, with half-pixel centres and clamped at the edges;
/// step is from / to.
OPGATE_HOST_DEVICE inline Tap bilinear_tap(int i, double step, int from) {
  const double place = (i + 0.5) * step - 0.5;
  const double inside = place < 0 ? 0 : place > from - 1 ? from - 1 : place;
  const int first = static_cast<int>(inside);
  return {first, static_cast<float>(inside - first)};
}

/// The place of `from` whose centre is nearest to that of place i of `to`, the lower one where two are as near:
/// ceil((i + 0.5) * from / to - 1), in integers.
OPGATE_HOST_DEVICE inline int nearest_place(int i, int from, int to) {
  return static_cast<int>(((2 * std::int64_t{i} + 1) * from - 1) / (2 * std::int64_t{to}));
}

/// value = pixel * scale + bias for R, G and B: (pixel / 255 - mean) / std.
struct Normalization {
  float scale[3];
  float bias[3];
};

}  // namespace opgate::ops

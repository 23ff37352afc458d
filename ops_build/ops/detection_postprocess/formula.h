// Candidates, their order, and what two boxes share, for every device.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/dtype.h"

namespace opgate::ops::detection_postprocess {

struct Box {
  double x1, y1, x2, y2, area;
};

/// An anchor and a class whose probability passed, as one number: the best is the smallest. In the upper half the
/// score, descending; in the lower anchor * classes + class, ascending.
using Candidate = std::uint64_t;

OPGATE_HOST_DEVICE inline Candidate candidate(float score, std::uint32_t place) {
  const float positive_zero = score + 0.0f;  // -0 becomes 0
  std::uint32_t bits;
  std::memcpy(&bits, &positive_zero, sizeof bits);  // nvcc's std::bit_cast is the host's
  // Of two floats the greater has the greater key.
  const std::uint32_t key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<Candidate>(~key) << 32 | place;
}

OPGATE_HOST_DEVICE inline std::uint32_t place_of(Candidate candidate) { return static_cast<std::uint32_t>(candidate); }

/// max(0, to - from), NaN where either is NaN.
OPGATE_HOST_DEVICE inline double extent(double from, double to) { return to - from < 0 ? 0 : to - from; }

/// One row of the batch.
struct Head {
  const float* values;
  std::int64_t classes, anchors;

  OPGATE_HOST_DEVICE float probability(std::int64_t anchor, std::int64_t label) const {
    return values[(4 + label) * anchors + anchor];
  }

  OPGATE_HOST_DEVICE Box box(std::int64_t anchor, bool corners) const {
    const double a = values[anchor], b = values[anchors + anchor];
    const double c = values[2 * anchors + anchor], d = values[3 * anchors + anchor];
    Box box = corners ? Box{a, b, c, d, 0} : Box{a - c / 2, b - d / 2, a + c / 2, b + d / 2, 0};
    box.area = extent(box.x1, box.x2) * extent(box.y1, box.y2);
    return box;
  }
};

/// Intersection over union; 0 for an empty union, and false in every comparison (NaN) for boxes that aren't finite.
OPGATE_HOST_DEVICE inline double iou(const Box& a, const Box& b) {
  const double shared = extent(a.x1 < b.x1 ? b.x1 : a.x1, b.x2 < a.x2 ? b.x2 : a.x2) *
                        extent(a.y1 < b.y1 ? b.y1 : a.y1, b.y2 < a.y2 ? b.y2 : a.y2);
  const double all = a.area + b.area - shared;
  return all == 0 ? 0 : shared / all;
}

/// Model pixels to source pixels, where ImagePreprocess has told how.
OPGATE_HOST_DEVICE inline void write_box(const Box& box, const float* geometry, float* out) {
  const double corners[4] = {box.x1, box.y1, box.x2, box.y2};
  for (int i = 0; i < 4; ++i) {
    double value = corners[i];
    if (geometry) {
      const int axis = i % 2;
      value = (value - geometry[2 + axis]) * geometry[axis];
      const double most = geometry[4 + axis];
      value = value < 0 ? 0 : value > most ? most : value;
    }
    out[i] = static_cast<float>(value);
  }
}

}  // namespace opgate::ops::detection_postprocess

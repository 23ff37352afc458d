// Candidates, their order, and the overlap of boxes, for every device.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/dtype.h"

namespace opgate::ops::detection_postprocess {

struct Box {
  double x1, y1, x2, y2, area;
};

/// An anchor and a class with a score over the threshold, as one number. The best candidate is the smallest number. The
/// upper half orders by descending score, the lower half is anchor * classes + class.
using Candidate = std::uint64_t;

OPGATE_HOST_DEVICE inline Candidate candidate(float score, std::uint32_t index) {
  const float positive_zero = score + 0.0f;  // -0 becomes 0
  std::uint32_t bits;
  std::memcpy(&bits, &positive_zero, sizeof bits);  // nvcc's std::bit_cast is a host function
  // The key of a greater float is greater.
  const std::uint32_t key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<Candidate>(~key) << 32 | index;
}

OPGATE_HOST_DEVICE inline std::uint32_t index_of(Candidate candidate) { return static_cast<std::uint32_t>(candidate); }

/// max(0, to - from). NaN if either is NaN.
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

/// Intersection over union. 0 for an empty union. NaN, which is less and greater than nothing, for boxes that aren't
/// finite.
OPGATE_HOST_DEVICE inline double iou(const Box& a, const Box& b) {
  const double shared = extent(a.x1 < b.x1 ? b.x1 : a.x1, b.x2 < a.x2 ? b.x2 : a.x2) *
                        extent(a.y1 < b.y1 ? b.y1 : a.y1, b.y2 < a.y2 ? b.y2 : a.y2);
  const double all = a.area + b.area - shared;
  return all == 0 ? 0 : shared / all;
}

/// Converts model pixels to source pixels, with the geometry from ImagePreprocess.
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

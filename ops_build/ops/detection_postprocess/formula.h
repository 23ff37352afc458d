// The head of a detector, and the boxes that it gives, for every device.
#pragma once

#include "detection/nms.h"

namespace opgate::ops::detection_postprocess {

using detection::Box;

/// One row of the batch.
struct Head {
  const float* values;
  std::int64_t classes, anchors;
  bool corners;  ///< boxes are x1 y1 x2 y2, not centres and sizes

  OPGATE_HOST_DEVICE const float* scores() const { return values + 4 * anchors; }

  OPGATE_HOST_DEVICE Box box(std::int64_t anchor) const {
    const double a = values[anchor], b = values[anchors + anchor];
    const double c = values[2 * anchors + anchor], d = values[3 * anchors + anchor];
    return corners ? detection::box_of(a, b, c, d) : detection::box_of(a - c / 2, b - d / 2, a + c / 2, b + d / 2);
  }
};

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

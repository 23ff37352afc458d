// The head of a detector, and the boxes that it gives, for every device.
#pragma once

#include "detection/nms.h"

namespace opgate::ops::detection_postprocess {

using detection::Box;

/// One row of the batch.
template <typename T>
struct Head {
  const T* values;
  std::int64_t classes, anchors, channels;
  std::int64_t first_class;  ///< its channel: 4, or 5 behind an objectness
  bool anchors_first;        ///< the values of an anchor are neighbours, not those of a channel
  bool corners;              ///< boxes are x1 y1 x2 y2, not centres and sizes

  /// For the CPU.
  detection::Scores<T> scores() const {
    const T* const objectness = first_class == 4 ? nullptr : values + (anchors_first ? 4 : 4 * anchors);
    if (anchors_first) return {values + first_class, anchors, classes, channels, true, objectness, channels};
    return {values + first_class * anchors, classes, anchors, anchors, false, objectness, 1};
  }

  OPGATE_HOST_DEVICE Box box(std::int64_t anchor) const {
    const T* const first = values + (anchors_first ? anchor * channels : anchor);
    const std::int64_t step = anchors_first ? 1 : anchors;
    const double a = static_cast<float>(first[0]), b = static_cast<float>(first[step]);
    const double c = static_cast<float>(first[2 * step]), d = static_cast<float>(first[3 * step]);
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

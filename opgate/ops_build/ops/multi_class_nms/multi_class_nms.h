#pragma once

#include "detection/checks.h"
#include "detection/nms.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(MultiClassNMS,
          "MultiClassNMS(boxes: f32[n,a,4], scores: f32[n,c,a]; score_threshold: float=0.05, "
          "iou_threshold: float=0.5, max_per_class: int=1000, max_detections: int=100, class_agnostic: bool=false) "
          "-> (detections: f32[n,max_detections,4], kept_scores: f32[n,max_detections], "
          "labels: i32[n,max_detections], count: i32[n], indices?: i32[n,max_detections])",
          "Score threshold, greedy NMS in each class (or over all classes), then the best of all classes.")

namespace opgate::ops::multi_class_nms {

using detection::Box;
using detection::Limits;

inline Limits limits_of(const Attributes& attributes) {
  return {static_cast<float>(attributes.number("score_threshold")),
          static_cast<float>(attributes.number("iou_threshold")), attributes.integer("max_detections"),
          attributes.integer("max_per_class"), attributes.boolean("class_agnostic")};
}

/// One picture of the batch.
struct Picture {
  const float* boxes;
  const float* values;  ///< the scores
  std::int64_t classes, anchors;

  OPGATE_HOST_DEVICE const float* scores() const { return values; }

  OPGATE_HOST_DEVICE Box box(std::int64_t anchor) const {
    const float* corners = boxes + 4 * anchor;
    return detection::box_of(corners[0], corners[1], corners[2], corners[3]);
  }
};

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    OPGATE_RETURN_IF_ERROR(detection::check_limits(attributes));
    if (attributes.integer("max_per_class") < 0) return attributes.refuse("max_per_class", "0 or more");
    return detection::check_candidates(sizes);
  }
};

}  // namespace opgate::ops::multi_class_nms

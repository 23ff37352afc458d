#pragma once

#include <string>

#include "detection/checks.h"
#include "detection/rotated.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(NMSRotated,
          "NMSRotated(boxes: f32[n,a,5], scores: f32[n,c,a], box_labels?: i32[n,a]; score_threshold: float=0.05, "
          "iou_threshold: float=0.5, max_detections: int=100, class_agnostic: bool=false, clockwise: bool=true) "
          "-> (detections: f32[n,max_detections,5], kept_scores: f32[n,max_detections], "
          "labels: i32[n,max_detections], count: i32[n], indices?: i32[n,max_detections])",
          "Greedy NMS of rotated boxes (cx, cy, w, h, angle) in each class, then the best of all classes.")

namespace opgate::ops::nms_rotated {

using detection::Limits;
using detection::RotatedBox;

inline Limits limits_of(const Attributes& attributes) {
  const std::int64_t most = attributes.integer("max_detections");
  return {static_cast<float>(attributes.number("score_threshold")),
          static_cast<float>(attributes.number("iou_threshold")), most, most, attributes.boolean("class_agnostic")};
}

inline Status check_labels(const Inputs& in) {
  if (!in.has("box_labels") || in.size("c") == 1) return {};
  return Status::invalid("input 'box_labels': expected scores of one class with it, c = 1, got c = " +
                         std::to_string(in.size("c")));
}

/// One picture of the batch.
struct Picture {
  const float* boxes;
  const float* values;         ///< the scores
  const std::int32_t* labels;  ///< of the anchors; null if the scores have the classes
  std::int64_t classes, anchors;
  bool clockwise;

  OPGATE_HOST_DEVICE const float* scores() const { return values; }

  OPGATE_HOST_DEVICE RotatedBox box(std::int64_t anchor) const {
    return detection::rotated_box_of(boxes + 5 * anchor, clockwise);
  }

  OPGATE_HOST_DEVICE std::int32_t label_of(std::int64_t anchor, std::int64_t label) const {
    return labels ? labels[anchor] : static_cast<std::int32_t>(label);
  }
};

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    OPGATE_RETURN_IF_ERROR(detection::check_limits(attributes));
    return detection::check_candidates(sizes);
  }
};

}  // namespace opgate::ops::nms_rotated

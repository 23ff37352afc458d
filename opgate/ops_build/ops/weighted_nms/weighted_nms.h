#pragma once

#include <string>

#include "detection/checks.h"
#include "detection/nms.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(WeightedNMS,
          "WeightedNMS(boxes: f32[n,a,d], scores: f32[n,c,a], iou_thresholds?: f32[n]; score_threshold: float=0.5, "
          "iou_threshold: float=0.3, max_detections: int=100, class_agnostic: bool=false) "
          "-> (detections: f32[n,max_detections,d], kept_scores: f32[n,max_detections], "
          "labels: i32[n,max_detections], count: i32[n])",
          "Non-maximum suppression that gives the mean of the boxes that overlap, weighted by their scores.")

namespace opgate::ops::weighted_nms {

using detection::Box;
using detection::Candidate;

/// One picture of the batch.
struct Picture {
  const float* boxes;   ///< [anchors, numbers]
  const float* values;  ///< the scores, [classes, anchors]
  std::int64_t classes, anchors, numbers;

  OPGATE_HOST_DEVICE const float* scores() const { return values; }

  OPGATE_HOST_DEVICE Box box(std::int64_t anchor) const {
    const float* const corners = boxes + numbers * anchor;
    return detection::box_of(corners[0], corners[1], corners[2], corners[3]);
  }

  OPGATE_HOST_DEVICE std::int64_t anchor_of(Candidate one) const { return detection::index_of(one) / classes; }
  OPGATE_HOST_DEVICE std::int64_t label_of(Candidate one) const { return detection::index_of(one) % classes; }

  OPGATE_HOST_DEVICE double score_of(Candidate one) const { return values[label_of(one) * anchors + anchor_of(one)]; }

  /// Number c of the anchor of a candidate.
  OPGATE_HOST_DEVICE double number_of(Candidate one, std::int64_t c) const {
    return boxes[anchor_of(one) * numbers + c];
  }

  /// Whether a candidate belongs to the mean that is around the best one.
  OPGATE_HOST_DEVICE bool belongs(Candidate one, Candidate best, const Box& box,
                                  const detection::Limits& limits) const {
    if (one == best) return true;
    return (limits.class_agnostic || label_of(one) == label_of(best)) &&
           detection::iou(box, this->box(anchor_of(one))) > limits.iou_threshold;
  }
};

/// The outputs, the pictures of the inputs, and the limits of each.
struct Batch {
  Picture first;
  detection::Limits limits;
  std::int64_t n;
  float *detections, *scores;
  std::int32_t *labels, *count;

  static Batch of(const Inputs& in, const Attributes& attributes, Outputs& out) {
    const std::int64_t most = attributes.integer("max_detections");
    return {{in["boxes"].data<float>(), in["scores"].data<float>(), in.size("c"), in.size("a"), in.size("d")},
            {static_cast<float>(attributes.number("score_threshold")),
             static_cast<float>(attributes.number("iou_threshold")), most, most, attributes.boolean("class_agnostic"),
             data_or_null<float>(in, "iou_thresholds")},
            in.size("n"),
            out["detections"].data<float>(),
            out["kept_scores"].data<float>(),
            out["labels"].data<std::int32_t>(),
            out["count"].data<std::int32_t>()};
  }

  OPGATE_HOST_DEVICE Picture picture(std::int64_t i) const {
    Picture of_row = first;
    of_row.boxes += i * first.anchors * first.numbers;
    of_row.values += i * first.classes * first.anchors;
    return of_row;
  }

  OPGATE_HOST_DEVICE detection::Limits limits_of(std::int64_t i) const {
    detection::Limits own = limits;
    own.iou_threshold = limits.iou_threshold_of(i);
    return own;
  }

  /// The numbers of detection k of picture i.
  OPGATE_HOST_DEVICE float* detection(std::int64_t i, std::int64_t k) const {
    return detections + first.numbers * (i * limits.max_detections + k);
  }

  /// Writes score and label of detection k of picture i.
  OPGATE_HOST_DEVICE void write(std::int64_t i, std::int64_t k, const Picture& of_row, Candidate best) const {
    scores[i * limits.max_detections + k] = static_cast<float>(of_row.score_of(best));
    labels[i * limits.max_detections + k] = static_cast<std::int32_t>(of_row.label_of(best));
  }

  /// Clears detection k of picture i, which is unused.
  OPGATE_HOST_DEVICE void clear(std::int64_t i, std::int64_t k) const {
    for (std::int64_t c = 0; c < first.numbers; ++c) detection(i, k)[c] = 0;
    scores[i * limits.max_detections + k] = 0;
    labels[i * limits.max_detections + k] = -1;
  }
};

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    OPGATE_RETURN_IF_ERROR(detection::check_limits(attributes));
    if (attributes.number("score_threshold") < 0) return attributes.refuse("score_threshold", "0 or more");
    if (const auto numbers = sizes["d"]; numbers && *numbers < 4)
      return Status::invalid("input 'boxes': expected d >= 4, got " + std::to_string(*numbers));
    return detection::check_candidates(sizes);
  }
};

}  // namespace opgate::ops::weighted_nms

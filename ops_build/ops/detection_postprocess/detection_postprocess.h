#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "core/op.h"
#include "detection/checks.h"
#include "detection/nms.h"

OPGATE_OP(
    DetectionPostprocess,
    "DetectionPostprocess(head: f32[n,c,a], geometry?: f32[n,6]; score_threshold: float=0.25, "
    "iou_threshold: float=0.5, max_detections: int=100, box_format: {cxcywh|xyxy}=cxcywh) "
    "-> (boxes: f32[n,max_detections,4], scores: f32[n,max_detections], labels: i32[n,max_detections], count: i32[n])",
    "Turns a detector's head into boxes: score threshold, greedy NMS in each class, then the best of all classes.")

namespace opgate::ops::detection_postprocess {

struct Settings {
  detection::Limits limits;
  bool corners = false;  ///< boxes are x1 y1 x2 y2, not centres and sizes

  static Settings of(const Attributes& attributes) {
    const std::int64_t most = attributes.integer("max_detections");
    return {{static_cast<float>(attributes.number("score_threshold")),
             static_cast<float>(attributes.number("iou_threshold")), most, most},
            attributes.text("box_format") == "xyxy"};
  }
};

/// What both kernels have in common.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    OPGATE_RETURN_IF_ERROR(detection::check_limits(attributes));
    return check_head(sizes);
  }

 private:
  static Status check_head(const KnownSizes& sizes) {
    const std::optional<std::int64_t> channels = sizes["c"], anchors = sizes["a"];
    if (channels && *channels < 4) {
      return Status::invalid(
          "input 'head': expected f32[n,c,a] with c >= 4 (four box channels, then one a class), got c = " +
          std::to_string(*channels));
    }
    std::int64_t probabilities = 0;
    if (channels && anchors &&
        (__builtin_mul_overflow(*channels - 4, *anchors, &probabilities) ||
         probabilities > std::numeric_limits<std::uint32_t>::max())) {
      return Status::invalid("input 'head': expected fewer than 2^32 probabilities a row, got " +
                             std::to_string(*channels - 4) + " x " + std::to_string(*anchors));
    }
    return {};
  }
};

}  // namespace opgate::ops::detection_postprocess

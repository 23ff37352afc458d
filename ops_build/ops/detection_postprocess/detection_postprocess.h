#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "core/op.h"

OPGATE_OP(
    DetectionPostprocess,
    "DetectionPostprocess(head: f32[n,c,a], geometry?: f32[n,6]; score_threshold: float=0.25, "
    "iou_threshold: float=0.5, max_detections: int=100, box_format: {cxcywh|xyxy}=cxcywh) "
    "-> (boxes: f32[n,max_detections,4], scores: f32[n,max_detections], labels: i32[n,max_detections], count: i32[n])",
    "Turns a detector's head into boxes: score threshold, greedy NMS in each class, then the best of all classes.")

namespace opgate::ops::detection_postprocess {

/// The checked attributes.
struct Settings {
  float score_threshold = 0;
  double iou_threshold = 0;
  std::int64_t max_detections = 0;
  bool corners = false;  ///< boxes are x1 y1 x2 y2, not centres and sizes

  Status read(const Attributes& attributes);
};

inline Status Settings::read(const Attributes& attributes) {
  const auto wrong = [](const std::string& name, const std::string& expected, const std::string& got) {
    return Status::invalid("attribute '" + name + "': expected " + expected + ", got " + got);
  };
  score_threshold = static_cast<float>(attributes.number("score_threshold"));
  iou_threshold = static_cast<float>(attributes.number("iou_threshold"));
  max_detections = attributes.integer("max_detections");
  corners = attributes.text("box_format") == "xyxy";
  if (std::isnan(score_threshold)) return wrong("score_threshold", "a number", "nan");
  if (!(iou_threshold >= 0 && iou_threshold <= 1)) {
    return wrong("iou_threshold", "0..1", std::to_string(iou_threshold));
  }
  if (max_detections < 0) return wrong("max_detections", "0 or more", std::to_string(max_detections));
  return {};
}

inline Status check_head(const Inputs& in) {
  const std::int64_t channels = in.size("c"), anchors = in.size("a");
  if (channels < 4) {
    return Status::invalid(
        "input 'head': expected f32[n,c,a] with c >= 4 (four box channels, then one a class), got c = " +
        std::to_string(channels));
  }
  if ((channels - 4) * anchors > std::numeric_limits<std::uint32_t>::max()) {
    return Status::invalid("input 'head': expected fewer than 2^32 probabilities a row, got " +
                           std::to_string((channels - 4) * anchors));
  }
  return {};
}

}  // namespace opgate::ops::detection_postprocess

// The attributes, and what the host can see to be wrong with a call, for every device.
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "core/kernel.h"

namespace opgate::ops::detection {

struct Settings {
  float score_threshold;
  double iou_threshold;
  std::int64_t max_detections;
  bool corners;  ///< boxes come as x1 y1 x2 y2
};

inline Status read_settings(const Attributes& attributes, Settings& settings) {
  const auto wrong = [](const std::string& name, const std::string& expected, const std::string& got) {
    return Status::invalid("attribute '" + name + "': expected " + expected + ", got " + got);
  };
  settings.score_threshold = static_cast<float>(attributes.number("score_threshold"));
  settings.iou_threshold = static_cast<float>(attributes.number("iou_threshold"));
  settings.max_detections = attributes.integer("max_detections");
  settings.corners = attributes.text("box_format") == "xyxy";
  if (std::isnan(settings.score_threshold)) return wrong("score_threshold", "a number", "nan");
  if (!(settings.iou_threshold >= 0 && settings.iou_threshold <= 1)) {
    return wrong("iou_threshold", "0..1", std::to_string(settings.iou_threshold));
  }
  if (settings.max_detections < 0) return wrong("max_detections", "0 or more", std::to_string(settings.max_detections));
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

}  // namespace opgate::ops::detection

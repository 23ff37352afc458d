// What every op with greedy non-maximum suppression refuses.
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "op_call/kernel.h"

namespace opgate::detection {

inline Status check_limits(const Attributes& attributes) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const double iou_threshold = attributes.number("iou_threshold");
  if (std::isnan(attributes.number("score_threshold"))) return attributes.refuse("score_threshold", "a number");
  if (!(iou_threshold >= 0 && iou_threshold <= 1)) return attributes.refuse("iou_threshold", "0..1");
  if (attributes.integer("max_detections") > kMost)
    return attributes.refuse("max_detections", "at most " + std::to_string(kMost));
  return {};
}

/// Checks the sizes of boxes [n,a,...] and scores [n,c,a].
inline Status check_candidates(const KnownSizes& sizes) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::optional<std::int64_t> classes = sizes["c"], anchors = sizes["a"];
  if (anchors && *anchors > kMost) {
    return Status::invalid("input 'boxes': expected a <= " + std::to_string(kMost) + ", got " +
                           std::to_string(*anchors));
  }
  std::int64_t scores = 0;
  if (classes && anchors &&
      (__builtin_mul_overflow(*classes, *anchors, &scores) || scores > std::numeric_limits<std::uint32_t>::max())) {
    return Status::invalid("input 'scores': expected fewer than 2^32 scores a picture, got " +
                           std::to_string(*classes) + " x " + std::to_string(*anchors));
  }
  return {};
}

}  // namespace opgate::detection

#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "detection/nms.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(SoftNMS,
          "SoftNMS(boxes: f32[n,4], scores: f32[n]; iou_threshold: float=0.3, sigma: float=0.5, "
          "min_score: float=0.001, method: {gaussian|linear|naive}=gaussian) "
          "-> (detections: f32[k<=n,5], indices: i64[k])",
          "Non-maximum suppression that lowers the scores of overlapping boxes in place of removing them.")

namespace opgate::ops::soft_nms {

using detection::Box;

/// How a kept box changes the scores of others.
struct Decay {
  enum class Method { gaussian, linear, naive } method = Method::gaussian;
  double iou_threshold = 0, sigma = 1, min_score = 0;

  static Decay of(const Attributes& attributes) {
    const std::string name = attributes.text("method");
    const Method method = name == "gaussian" ? Method::gaussian : name == "linear" ? Method::linear : Method::naive;
    return {method, static_cast<float>(attributes.number("iou_threshold")),
            static_cast<float>(attributes.number("sigma")), static_cast<float>(attributes.number("min_score"))};
  }

  /// Whether boxes that don't meet leave each other's scores alone.
  OPGATE_HOST_DEVICE bool is_local() const { return method != Method::naive || iou_threshold > 0; }

  /// The factor of the score of a box with this IoU. 1 if the IoU is NaN.
  OPGATE_HOST_DEVICE double weight(double iou) const {
    if (iou != iou) return 1;
    if (method == Method::gaussian) return exp(-(iou * iou) / sigma);
    if (iou < iou_threshold) return 1;
    return method == Method::linear ? 1 - iou : 0;
  }
};

/// A score that is no candidate any more, or never was one.
constexpr double kNone = -std::numeric_limits<double>::infinity();

OPGATE_HOST_DEVICE inline double first_score(float score) {
  return score == score ? static_cast<double>(score) : kNone;
}

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    const double iou_threshold = attributes.number("iou_threshold"), sigma = attributes.number("sigma");
    if (!(iou_threshold >= 0 && iou_threshold <= 1)) return attributes.refuse("iou_threshold", "0..1");
    if (!(sigma > 0) || std::isinf(sigma)) return attributes.refuse("sigma", "a positive finite number");
    if (std::isnan(attributes.number("min_score"))) return attributes.refuse("min_score", "a number");
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    if (const auto n = sizes["n"]; n && *n > kMost)
      return Status::invalid("input 'boxes': expected n <= " + std::to_string(kMost) + ", got " + std::to_string(*n));
    return {};
  }
};

}  // namespace opgate::ops::soft_nms

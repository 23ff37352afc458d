#pragma once

#include <limits>
#include <string>

#include "detection/checks.h"
#include "detection/nms.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(
    DetectionPostprocess,
    "<T: f16|f32> DetectionPostprocess(head: T[n,c,a], geometry?: f32[n,6], iou_thresholds?: f32[n]; "
    "score_threshold: float=0.25, iou_threshold: float=0.5, max_detections: int=100, "
    "box_format: {cxcywh|xyxy}=cxcywh, class_agnostic: bool=false, classes: int=0, "
    "layout: {channels_first|anchors_first}=channels_first, objectness: bool=false) "
    "-> (boxes: f32[n,max_detections,4], scores: f32[n,max_detections], labels: i32[n,max_detections], count: i32[n], "
    "indices??: i32[n,max_detections])",
    "Turns a detector's head into boxes: score threshold, greedy NMS in each class, then the best of all classes.")

namespace opgate::ops::detection_postprocess {

/// Of a head [n, channels, anchors] or, with anchors_first, [n, anchors, channels].
struct HeadSize {
  std::int64_t channels, anchors;
};

struct Settings {
  detection::Limits limits;
  bool corners = false;      ///< boxes are x1 y1 x2 y2, not centres and sizes
  std::int64_t classes = 0;  ///< 0: all channels from the first class on
  bool anchors_first = false;
  std::int64_t first_class = 4;  ///< its channel

  static Settings of(const Attributes& attributes) {
    const std::int64_t most = attributes.integer("max_detections");
    return {{static_cast<float>(attributes.number("score_threshold")),
             static_cast<float>(attributes.number("iou_threshold")), most, most, attributes.boolean("class_agnostic")},
            attributes.text("box_format") == "xyxy",
            attributes.integer("classes"),
            attributes.text("layout") == "anchors_first",
            attributes.boolean("objectness") ? 5 : 4};
  }

  /// The limits of a call. The thresholds of an input are in memory of the kernel's device.
  detection::Limits limits_of(const Inputs& in) const {
    detection::Limits of_call = limits;
    if (in.has("iou_thresholds")) of_call.iou_thresholds = in["iou_thresholds"].data<float>();
    return of_call;
  }

  /// `in` has the named sizes c and a, which change places with anchors_first.
  HeadSize head_size(const Inputs& in) const {
    const std::int64_t c = in.size("c"), a = in.size("a");
    return anchors_first ? HeadSize{a, c} : HeadSize{c, a};
  }

  /// The number of classes of a head with so many channels.
  std::int64_t classes_of(std::int64_t channels) const { return classes ? classes : channels - first_class; }
};

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    OPGATE_RETURN_IF_ERROR(detection::check_limits(attributes));
    if (attributes.integer("classes") < 0)
      return attributes.refuse("classes", "0 (all channels from the first class on) or more");
    return check_head(attributes, sizes);
  }

 private:
  static Status check_head(const Attributes& attributes, const KnownSizes& sizes) {
    const bool anchors_first = attributes.text("layout") == "anchors_first";
    const std::optional<std::int64_t> channels = sizes[anchors_first ? "a" : "c"],
                                      anchors = sizes[anchors_first ? "c" : "a"];
    const std::int64_t first = Settings::of(attributes).first_class;
    if (channels && *channels < first) {
      return Status::invalid(std::string("input 'head': expected ") +
                             (anchors_first ? "[n,anchors,channels] with channels" : "[n,c,a] with c") +
                             " >= " + std::to_string(first) + " (four box channels, " +
                             (first == 5 ? "objectness, " : "") + "then one a class), got " +
                             (anchors_first ? "channels" : "c") + " = " + std::to_string(*channels));
    }
    if (channels && attributes.integer("classes") > *channels - first) {
      return attributes.refuse("classes", "at most " + std::to_string(*channels - first) + ", as head has " +
                                              std::to_string(*channels) + " channels" +
                                              (first == 5 ? " with the objectness" : ""));
    }
    const std::int64_t classes = channels ? Settings::of(attributes).classes_of(*channels) : 0;
    std::int64_t probabilities = 0;
    if (anchors && (__builtin_mul_overflow(classes, *anchors, &probabilities) ||
                    probabilities > std::numeric_limits<std::uint32_t>::max())) {
      return Status::invalid("input 'head': expected fewer than 2^32 probabilities a row, got " +
                             std::to_string(classes) + " x " + std::to_string(*anchors));
    }
    return {};
  }
};

}  // namespace opgate::ops::detection_postprocess

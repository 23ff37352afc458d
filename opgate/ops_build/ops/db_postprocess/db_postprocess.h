#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "images/sides.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(DBPostprocess,
          "DBPostprocess(probabilities: f32[n,1,h,w], geometry?: f32[n,6], thresholds?: f32[n], "
          "box_thresholds?: f32[n]; threshold: float=0.3, box_threshold: float=0.6, unclip_ratio: float=1.5, "
          "min_size: int=3, max_detections: int=1000, dilation: bool=false) "
          "-> (quads: f32[n,max_detections,4,2], scores: f32[n,max_detections], count: i32[n])",
          "Turns the map of a text detector (differentiable binarization) into rotated rectangles around its regions.")

namespace opgate::ops::db_postprocess {

struct Settings {
  float threshold, box_threshold;
  double unclip_ratio;
  std::int64_t min_size, max_detections;
  bool dilation;

  static Settings of(const Attributes& attributes) {
    return {static_cast<float>(attributes.number("threshold")),
            static_cast<float>(attributes.number("box_threshold")),
            attributes.number("unclip_ratio"),
            attributes.integer("min_size"),
            attributes.integer("max_detections"),
            attributes.boolean("dilation")};
  }
};

/// The `check` of the kernel.
struct Checked {
  static constexpr std::int64_t kMaxSide = 1 << 24;

  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    for (const char* name : {"threshold", "box_threshold"}) {
      if (std::isnan(attributes.number(name))) return attributes.refuse(name, "a number");
    }
    const double ratio = attributes.number("unclip_ratio");
    if (!(ratio >= 0 && std::isfinite(ratio))) return attributes.refuse("unclip_ratio", "a finite number from 0 on");
    const std::int64_t side = attributes.integer("min_size");
    if (side < 1 || side > kMaxSide) return attributes.refuse("min_size", "1.." + std::to_string(kMaxSide));
    if (attributes.integer("max_detections") > kMost)
      return attributes.refuse("max_detections", "at most " + std::to_string(kMost));
    OPGATE_RETURN_IF_ERROR(images::check_sides(sizes, "probabilities", kMaxSide));
    const auto h = sizes["h"], w = sizes["w"];
    if (h && w && *h * *w > std::numeric_limits<std::uint32_t>::max()) {
      return Status::invalid("input 'probabilities': expected fewer than 2^32 pixels in a map, got " +
                             std::to_string(*h) + " x " + std::to_string(*w));
    }
    return {};
  }
};

}  // namespace opgate::ops::db_postprocess

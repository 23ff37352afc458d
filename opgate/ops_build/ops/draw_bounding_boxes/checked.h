#pragma once

#include <string>

#include "kernel_toolkit/op.h"

namespace opgate::ops::draw_bounding_boxes {

/// The `check` of kernels that draw outlines.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes&) {
    constexpr std::int64_t kMost = 1000;
    const std::int64_t thickness = attributes.integer("thickness");
    if (thickness >= 0 && thickness <= kMost) return {};
    return attributes.refuse("thickness", "0 (chosen by the picture's size) to " + std::to_string(kMost));
  }
};

}  // namespace opgate::ops::draw_bounding_boxes

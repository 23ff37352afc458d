#pragma once

#include <cmath>
#include <string>

#include "images/normalization.h"
#include "images/sides.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(PerspectiveCrop,
          "PerspectiveCrop(image: u8[n,h,w,3], quads: f32[r,4,2], index?: i32[r]; height: int, width: int, "
          "filter: {cubic|linear}=cubic, rotate_from: float=1.5, order: {RGB|BGR}=RGB, mean: float[3]=[0,0,0], "
          "std: float[3]=[1,1,1]) -> (crops: f32[r,3,height,c<=width], widths: i32[r])",
          "Turns quads of pictures, such as lines of text, into upright crops of one height.")

namespace opgate::ops::perspective_crop {

/// The `check` of the kernel.
struct Checked {
  static constexpr std::int64_t kMaxSide = 1 << 24;

  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    for (const char* name : {"height", "width"}) {
      const std::int64_t side = attributes.integer(name);
      if (side < 1 || side > kMaxSide) return attributes.refuse(name, "1.." + std::to_string(kMaxSide));
    }
    if (!(attributes.number("rotate_from") > 0)) return attributes.refuse("rotate_from", "a number above 0");
    OPGATE_RETURN_IF_ERROR(images::check_sides(sizes, "image", kMaxSide));
    return images::check_normalization(attributes);
  }
};

}  // namespace opgate::ops::perspective_crop

#pragma once

#include "kernel_toolkit/elementary.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(CornerPool,
          "<T: f16|bf16|f32|f64> CornerPool(x: T[n,c,h,w]; mode: {top|bottom|left|right}) -> (y: T[n,c,h,w])",
          "Running maxima along the rows or the columns, from one side of the picture on.")

namespace opgate::ops::corner_pool {

struct Mode {
  bool vertical;   ///< along a column
  bool backwards;  ///< from the last element to the first one

  static Mode of(const Attributes& attributes) {
    const std::string name = attributes.text("mode");
    return {name == "top" || name == "bottom", name == "top" || name == "left"};
  }
};

/// The greater number. NaN if either is NaN.
template <typename V>
OPGATE_HOST_DEVICE V greater(V a, V b) {
  return select((b > a) | (b != b), b, a);
}

}  // namespace opgate::ops::corner_pool

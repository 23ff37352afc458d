#pragma once

#include "regions.h"

OPGATE_OP(RoiAlignRotated,
          "<T: f16|bf16|f32> RoiAlignRotated(input: T[n,c,h,w], rois: f32[r,6]; output_height: int, output_width: int, "
          "spatial_scale: float=1, sampling_ratio: int=0, aligned: bool=true, clockwise: bool=false) "
          "-> (output: T[r,c,output_height,output_width])",
          "Averages samples of rotated regions (batch, cx, cy, w, h, angle) into bins.")

namespace opgate::ops::roi_align_rotated {

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    for (const char* name : {"output_height", "output_width"}) {
      if (attributes.integer(name) > kMostBins) return attributes.refuse(name, "at most " + std::to_string(kMostBins));
    }
    return ChecksSamples::check(attributes, sizes);
  }
};

}  // namespace opgate::ops::roi_align_rotated

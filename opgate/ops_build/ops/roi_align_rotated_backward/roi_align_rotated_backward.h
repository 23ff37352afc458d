#pragma once

#include "ops/roi_align_rotated/regions.h"

OPGATE_OP(RoiAlignRotatedBackward,
          "<T: f16|bf16|f32> RoiAlignRotatedBackward(grad_output: T[r,c,y,x], input: T[n,c,h,w], rois: f32[r,6]; "
          "spatial_scale: float=1, sampling_ratio: int=0, aligned: bool=true, clockwise: bool=false) "
          "-> (grad_input: T[n,c,h,w])",
          "The gradient of RoiAlignRotated with respect to the input.")

namespace opgate::ops::roi_align_rotated_backward {

using roi_align_rotated::kMostBins, roi_align_rotated::Region, roi_align_rotated::Sample, roi_align_rotated::sample_of,
    roi_align_rotated::SampleRange, roi_align_rotated::Settings;

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    for (const char* name : {"y", "x"}) {
      if (const auto size = sizes[name]; size && *size > kMostBins) {
        return Status::invalid("input 'grad_output': expected at most " + std::to_string(kMostBins) + " bins, got " +
                               name + " = " + std::to_string(*size));
      }
    }
    return roi_align_rotated::ChecksSamples::check(attributes, sizes);
  }
};

}  // namespace opgate::ops::roi_align_rotated_backward

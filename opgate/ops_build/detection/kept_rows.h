// The outputs of an op that keeps some of its boxes as they are, for every device.
#pragma once

#include "kernel_toolkit/op.h"

namespace opgate::detection {

/// Rows of `numbers` floats: those of `boxes` [n, anchors, numbers] that are kept, the best first, at most `most` of a
/// picture. An unused row has zeros, and -1 as its label and its index.
template <int numbers>
struct KeptRows {
  std::int64_t most, anchors;
  const float* boxes;
  float *detections, *scores;
  std::int32_t *labels, *count;
  std::int32_t* indices;  ///< may be null

  static KeptRows of(const Inputs& in, Outputs& out, std::int64_t most) {
    return {most,
            in.size("a"),
            in["boxes"].data<float>(),
            out["detections"].data<float>(),
            out["kept_scores"].data<float>(),
            out["labels"].data<std::int32_t>(),
            out["count"].data<std::int32_t>(),
            data_or_null<std::int32_t>(out, "indices")};
  }

  /// Writes row k of picture i.
  OPGATE_HOST_DEVICE void write(std::int64_t i, std::int64_t k, std::int64_t anchor, std::int32_t label,
                                float score) const {
    const std::int64_t at = i * most + k;
    const float* const box = boxes + numbers * (i * anchors + anchor);
    for (int c = 0; c < numbers; ++c) detections[numbers * at + c] = box[c];
    scores[at] = score;
    labels[at] = label;
    if (indices) indices[at] = static_cast<std::int32_t>(anchor);
  }

  /// Writes row k of picture i, which is unused.
  OPGATE_HOST_DEVICE void clear(std::int64_t i, std::int64_t k) const {
    const std::int64_t at = i * most + k;
    for (int c = 0; c < numbers; ++c) detections[numbers * at + c] = 0;
    scores[at] = 0;
    labels[at] = -1;
    if (indices) indices[at] = -1;
  }
};

}  // namespace opgate::detection

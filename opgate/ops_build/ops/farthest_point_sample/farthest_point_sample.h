#pragma once

#include <limits>
#include <string>

#include "kernel_toolkit/op.h"
#include "points/segments.h"

OPGATE_OP(FarthestPointSample,
          "<T: f32|f64, I: i32|i64> FarthestPointSample(xyz: T[n,d], offset: I[b], new_offset: I[b]) "
          "-> (idx: i32[v<=n])",
          "Samples each segment: its first point, then again and again the point that is farthest from all samples.")

namespace opgate::ops::farthest_point_sample {

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes&, const KnownSizes& sizes) {
    const auto n = sizes["n"], b = sizes["b"];
    if (n && *n > std::numeric_limits<std::int32_t>::max())
      return Status::invalid("input 'xyz': expected fewer than 2^31 rows, got " + std::to_string(*n));
    return n && *n > 0 && b && *b == 0 ? knn_query::wrong_last_end("offset", "xyz", *n, "no ends") : Status();
  }
};

}  // namespace opgate::ops::farthest_point_sample

#pragma once

#include <limits>
#include <string>

#include "core/op.h"

OPGATE_OP(Voxelize,
          "Voxelize(points: f32[n,c], size: f32[3], range?: f32[6]) "
          "-> (features: f32[v<=n,c], coords: i32[v,3], counts: i32[v])",
          "Gathers points into the voxels of a grid: for each occupied voxel the mean of its points, its number, their "
          "count.")

namespace opgate::ops::voxelize {

/// What both kernels have in common.
struct Checked {
  static Status check(const Attributes&, const KnownSizes& sizes) {
    const std::optional<std::int64_t> n = sizes["n"], c = sizes["c"];
    if (c && *c < 3) {
      return Status::invalid("input 'points': expected f32[n,c] with c >= 3 (x, y, z first), got c = " +
                             std::to_string(*c));
    }
    if (n && *n > std::numeric_limits<std::int32_t>::max()) {
      return Status::invalid("input 'points': expected fewer than 2^31 points, got " + std::to_string(*n));
    }
    return {};
  }
};

}  // namespace opgate::ops::voxelize

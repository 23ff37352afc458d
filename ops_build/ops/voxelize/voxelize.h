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

inline Status check_points(const Inputs& in) {
  const std::int64_t n = in.size("n"), c = in.size("c");
  if (c < 3) {
    return Status::invalid("input 'points': expected f32[n,c] with c >= 3 (x, y, z first), got c = " +
                           std::to_string(c));
  }
  if (n > std::numeric_limits<std::int32_t>::max()) {
    return Status::invalid("input 'points': expected fewer than 2^31 points, got " + std::to_string(n));
  }
  return {};
}

}  // namespace opgate::ops::voxelize

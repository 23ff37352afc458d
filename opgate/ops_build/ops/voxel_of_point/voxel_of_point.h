#pragma once

#include "kernel_toolkit/op.h"
#include "ops/voxelize/checks.h"

OPGATE_OP(VoxelOfPoint,
          "VoxelOfPoint(points: f32[n,c], coords: i32[v,3+batch_columns], size: f32[3], range?: f32[6]; "
          "order: {xyz|zyx}=xyz, batch_columns: int=0) -> (voxel: i32[n])",
          "For each point the row of coords, as Voxelize gives them, that holds it, or -1.")

namespace opgate::ops::voxel_of_point {

/// The key of a row of coords. kNoVoxel if no point can be in such a voxel.
OPGATE_HOST_DEVICE inline std::uint64_t key_of(const voxelize::KeyLayout& layout, voxelize::Columns columns,
                                               const std::int32_t* row) {
  std::uint64_t key = 0;
  for (int column = 0; column < columns.count(); ++column) {
    const int axis = columns.axis(column);
    const std::int64_t number = row[column], bias = layout.bias();
    const bool fits = axis < 3 ? number >= -bias && number < bias : number >= 0 && number < voxelize::kBatches;
    if (!fits) return voxelize::kNoVoxel;
    key |= layout.part(number, axis);
  }
  return key;
}

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    if (const auto v = sizes["v"]; v && *v > std::numeric_limits<std::int32_t>::max()) {
      return Status::invalid("input 'coords': expected fewer than 2^31 voxels, got " + std::to_string(*v));
    }
    return voxelize::check_points(attributes, sizes);
  }
};

}  // namespace opgate::ops::voxel_of_point

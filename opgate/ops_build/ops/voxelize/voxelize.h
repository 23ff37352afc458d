#pragma once

#include <limits>

#include "checks.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(
    Voxelize,
    "Voxelize(points: f32[n,c], size: f32[3], range?: f32[6]; reduction: {mean|sum|max}=mean, max_points: int=0, "
    "max_voxels: int=0, order: {xyz|zyx}=xyz, batch_columns: int=0) "
    "-> (features: f32[v<=n,c-batch_columns], coords: i32[v,3+batch_columns], counts: i32[v])",
    "Gathers points into the voxels of a grid: for each occupied voxel the mean, sum or maximum of its points, its "
    "number, their count.")

namespace opgate::ops::voxelize {

/// The attributes.
struct Settings {
  Reduction reduction;
  std::int64_t max_points, max_voxels;  ///< without a limit, the greatest i64
  Columns columns;

  explicit Settings(const Attributes& attributes)
      : reduction(attributes.text("reduction") == "mean"  ? Reduction::mean
                  : attributes.text("reduction") == "sum" ? Reduction::sum
                                                          : Reduction::max),
        max_points(limit(attributes.integer("max_points"))),
        max_voxels(limit(attributes.integer("max_voxels"))),
        columns(columns_of(attributes)) {}

  bool limits_voxels() const { return max_voxels < std::numeric_limits<std::int64_t>::max(); }

 private:
  static std::int64_t limit(std::int64_t value) {
    return value == 0 ? std::numeric_limits<std::int64_t>::max() : value;
  }
};

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    for (const char* name : {"max_points", "max_voxels"}) {
      if (attributes.integer(name) < 0) return attributes.refuse(name, "0 (no limit) or more");
    }
    return check_points(attributes, sizes);
  }
};

}  // namespace opgate::ops::voxelize

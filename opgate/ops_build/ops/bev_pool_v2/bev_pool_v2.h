#pragma once

#include "points.h"

OPGATE_OP(BevPoolV2,
          "<T: f16|bf16|f32|f64> BevPoolV2(depth: T[b,cams,d,h,w], feat: T[b,cams,h,w,c], ranks_depth: i32[p], "
          "ranks_feat: i32[p], ranks_bev: i32[p], interval_starts?: i32[i], interval_lengths?: i32[i]; "
          "out_z: int=1, out_height: int, out_width: int) -> (bev: T[b,out_z,out_height,out_width,c])",
          "Adds the features of cameras, times their depths' probabilities, to the cells of a bird's-eye view.")

namespace opgate::ops::bev_pool_v2 {

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    const std::optional<std::int64_t> grid[] = {sizes["b"], attributes.integer("out_z"),
                                                attributes.integer("out_height"), attributes.integer("out_width")};
    return check_points(sizes["p"], grid);
  }

  static std::int64_t cells(const Inputs& in, const Attributes& attributes) {
    return in.size("b") * attributes.integer("out_z") * attributes.integer("out_height") *
           attributes.integer("out_width");
  }
};

}  // namespace opgate::ops::bev_pool_v2

#pragma once

#include "ops/bev_pool_v2/points.h"

OPGATE_OP(BevPoolV2Backward,
          "<T: f16|bf16|f32|f64> BevPoolV2Backward(grad_bev: T[b,z,y,x,c], depth: T[b,cams,d,h,w], "
          "feat: T[b,cams,h,w,c], ranks_depth: i32[p], ranks_feat: i32[p], ranks_bev: i32[p], "
          "interval_starts?: i32[i], interval_lengths?: i32[i]) "
          "-> (grad_depth: T[b,cams,d,h,w], grad_feat: T[b,cams,h,w,c])",
          "The gradients of BevPoolV2 with respect to the depths' probabilities and to the features.")

namespace opgate::ops::bev_pool_v2_backward {

using bev_pool_v2::Points;

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes&, const KnownSizes& sizes) {
    const std::optional<std::int64_t> grid[] = {sizes["b"], sizes["z"], sizes["y"], sizes["x"]};
    return bev_pool_v2::check_points(sizes["p"], grid);
  }

  static std::int64_t cells(const Inputs& in) { return in.size("b") * in.size("z") * in.size("y") * in.size("x"); }
};

}  // namespace opgate::ops::bev_pool_v2_backward

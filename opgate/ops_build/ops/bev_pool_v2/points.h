// The points of BevPoolV2 and of its gradient, for every device.
#pragma once

#include <limits>
#include <string>

#include "kernel_toolkit/op.h"

namespace opgate::ops::bev_pool_v2 {

/// The ranks of each point, and how many depths, rows of features and cells there are.
struct Points {
  std::int64_t count;
  const std::int32_t *depth, *feat, *bev;
  std::int64_t depths, feats, cells;

  static Points of(const Inputs& in, std::int64_t cells) {
    const std::int64_t pixels = in.size("b") * in.size("cams") * in.size("h") * in.size("w");
    return {in.size("p"),
            in["ranks_depth"].data<std::int32_t>(),
            in["ranks_feat"].data<std::int32_t>(),
            in["ranks_bev"].data<std::int32_t>(),
            pixels * in.size("d"),
            pixels,
            cells};
  }

  OPGATE_HOST_DEVICE bool in_range(std::int64_t i) const {
    return depth[i] >= 0 && depth[i] < depths && feat[i] >= 0 && feat[i] < feats;
  }
};

/// So many points are added in the compute type before they are added to the others, so that the error of a long sum
/// stays small.
inline constexpr int kPointsTogether = 128;

/// Refuses sizes that ranks of i32 can't number.
inline Status check_points(std::optional<std::int64_t> points, std::span<const std::optional<std::int64_t>> grid) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (points && *points > kMost)
    return Status::invalid("input 'ranks_bev': expected fewer than 2^31 points, got " + std::to_string(*points));
  std::int64_t cells = 1;
  for (const auto& size : grid) {
    if (!size || *size <= 0) return {};
    if (__builtin_mul_overflow(cells, *size, &cells) || cells > kMost)
      return Status::invalid("output 'bev': expected fewer than 2^31 cells");
  }
  return {};
}

/// The intervals come together or not at all.
inline Status check_intervals(const Inputs& in) {
  if (in.has("interval_starts") == in.has("interval_lengths")) return {};
  return Status::invalid(in.has("interval_starts")
                             ? "input 'interval_lengths': expected it with 'interval_starts', got none"
                             : "input 'interval_starts': expected it with 'interval_lengths', got none");
}

}  // namespace opgate::ops::bev_pool_v2

// What the host can see to be wrong with a call, for every device.
#pragma once

#include <limits>
#include <string>

#include "core/kernel.h"

namespace opgate::ops {

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

}  // namespace opgate::ops

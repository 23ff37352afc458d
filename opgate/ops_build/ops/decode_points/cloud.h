// What the two readers of point clouds have in common.
#pragma once

#include <cmath>
#include <vector>

#include "kernel_toolkit/bytes.h"

namespace opgate::ops::decode_points {

using Bytes = std::span<const std::uint8_t>;

enum class CloudStatus : std::int32_t {
  good = 0,
  unknown = 1,
  corrupt = 2,
  too_many = 3,
  unsupported = 4,
  not_finite = 5,
  empty = 6
};

/// The points of one file: x, y and z of each.
using Cloud = std::vector<float>;

/// Whether a file may state so many points.
inline CloudStatus check_count(std::uint64_t count, std::uint64_t max_points) {
  if (count == 0) return CloudStatus::empty;
  return count > max_points ? CloudStatus::too_many : CloudStatus::good;
}

/// Appends a coordinate. Returns false if it is not finite as f32.
inline bool append(Cloud& cloud, double value) {
  cloud.push_back(static_cast<float>(value));
  return std::isfinite(cloud.back());
}

CloudStatus read_npy(Bytes file, std::uint64_t max_points, Cloud& cloud);
CloudStatus read_ply(Bytes file, std::uint64_t max_points, Cloud& cloud);

}  // namespace opgate::ops::decode_points

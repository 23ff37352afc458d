// The voxel of a point, for every device.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/dtype.h"

namespace opgate::ops::voxelize {

/// Voxel numbers are in [-2^20, 2^20), so that three of them fit into a key of 63 bits.
inline constexpr int kVoxelBits = 21;
inline constexpr std::int64_t kVoxelBias = std::int64_t{1} << (kVoxelBits - 1);

/// The key of a point that is in no voxel. It is greater than every key of a voxel.
inline constexpr std::uint64_t kNoVoxel = ~std::uint64_t{0};

/// The key is (z, y, x), each plus kVoxelBias. Keys have the same order as voxels.
OPGATE_HOST_DEVICE inline std::uint64_t voxel_key(std::int64_t x, std::int64_t y, std::int64_t z) {
  const auto part = [](std::int64_t number) { return static_cast<std::uint64_t>(number + kVoxelBias); };
  return part(z) << 2 * kVoxelBits | part(y) << kVoxelBits | part(x);
}

/// The voxel number on one axis (0 is x, 1 is y, 2 is z) of a key.
OPGATE_HOST_DEVICE inline std::int32_t voxel_number(std::uint64_t key, int axis) {
  const std::uint64_t part = key >> axis * kVoxelBits & ((std::uint64_t{1} << kVoxelBits) - 1);
  return static_cast<std::int32_t>(static_cast<std::int64_t>(part) - kVoxelBias);
}

/// The grid. Without a range it has no bounds, and voxel 0 begins at 0.
class VoxelGrid {
 public:
  /// `size` has three numbers and `range` is x0 y0 z0 x1 y1 z1, or null. All divisions are rounded to f32 as in NumPy,
  /// so none of them must become a product with a reciprocal.
  OPGATE_HOST_DEVICE VoxelGrid(const float* size, const float* range) {
    for (int axis = 0; axis < 3; ++axis) {
      size_[axis] = size[axis];
      valid_ = valid_ && size[axis] > 0 && size[axis] < INFINITY;
      if (!range) continue;
      origin_[axis] = range[axis];
      low_[axis] = range[axis];
      high_[axis] = range[3 + axis];
      last_[axis] = voxels(low_[axis], high_[axis], size[axis]) - 1;
    }
  }

  /// The key of the voxel of a point (x, y, z). kNoVoxel if the point is outside of the range or of the voxel numbers
  /// or isn't finite, if a size isn't positive and finite, or if the lower corner isn't finite.
  OPGATE_HOST_DEVICE std::uint64_t key(const float* point) const {
    if (!valid_) return kNoVoxel;
    std::int64_t number[3];
    for (int axis = 0; axis < 3; ++axis) {
      const float coordinate = point[axis];
      if (!(coordinate >= low_[axis] && coordinate < high_[axis])) return kNoVoxel;
      const float floored = std::floor((coordinate - origin_[axis]) / size_[axis]);
      // The quotient of a point just below `high` may be rounded up to the number behind the last voxel.
      const float held = floored > last_[axis] ? last_[axis] : floored;
      if (!(held >= -static_cast<float>(kVoxelBias) && held < static_cast<float>(kVoxelBias))) return kNoVoxel;
      number[axis] = static_cast<std::int64_t>(held);
    }
    return voxel_key(number[0], number[1], number[2]);
  }

 private:
  /// The number of voxels between two bounds: (high - low) / size, rounded to the nearest integer (half to even), and
  /// 1 at least.
  OPGATE_HOST_DEVICE static float voxels(float low, float high, float size) {
    const float rounded = std::rint((high - low) / size);
    return rounded > 1 ? rounded : 1;
  }

  float size_[3];
  float origin_[3] = {0, 0, 0};
  float low_[3] = {-INFINITY, -INFINITY, -INFINITY}, high_[3] = {INFINITY, INFINITY, INFINITY};
  float last_[3] = {INFINITY, INFINITY, INFINITY};  ///< the number of the last voxel
  bool valid_ = true;
};

}  // namespace opgate::ops::voxelize

// Which voxel a point lies in, for every device.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/dtype.h"

namespace opgate::ops::voxelize {

/// Voxel numbers lie in [-2^20, 2^20): three of them fit into a key of 63 bits.
inline constexpr int kVoxelBits = 21;
inline constexpr std::int64_t kVoxelBias = std::int64_t{1} << (kVoxelBits - 1);

/// Of a point that is in no voxel. All keys of voxels are less.
inline constexpr std::uint64_t kNoVoxel = ~std::uint64_t{0};

/// (z, y, x), each moved by kVoxelBias: keys are ordered as voxels are.
OPGATE_HOST_DEVICE inline std::uint64_t voxel_key(std::int64_t x, std::int64_t y, std::int64_t z) {
  const auto part = [](std::int64_t number) { return static_cast<std::uint64_t>(number + kVoxelBias); };
  return part(z) << 2 * kVoxelBits | part(y) << kVoxelBits | part(x);
}

/// The voxel number on one axis (0 is x, 1 is y, 2 is z) of a key.
OPGATE_HOST_DEVICE inline std::int32_t voxel_number(std::uint64_t key, int axis) {
  const std::uint64_t part = key >> axis * kVoxelBits & ((std::uint64_t{1} << kVoxelBits) - 1);
  return static_cast<std::int32_t>(static_cast<std::int64_t>(part) - kVoxelBias);
}

/// The grid: `range` is x0 y0 z0 x1 y1 z1, or null where every place is in the grid and voxel 0 begins at 0.
struct VoxelGrid {
  const float* size;
  const float* range;

  /// The key of the voxel that a point (x, y, z) lies in; kNoVoxel where it is outside of the range or beyond the
  /// numbers, or isn't finite, and wherever a size isn't positive and finite or the lower corner isn't finite. The
  /// division is a real one, rounded to f32 as NumPy's: no product with a reciprocal.
  OPGATE_HOST_DEVICE std::uint64_t key(const float* point) const {
    std::int64_t number[3];
    for (int axis = 0; axis < 3; ++axis) {
      const float place = point[axis];
      if (range && !(place >= range[axis] && place < range[3 + axis])) return kNoVoxel;
      const float floored = std::floor((place - (range ? range[axis] : 0.0f)) / size[axis]);
      if (!(size[axis] > 0 && size[axis] < INFINITY)) return kNoVoxel;
      if (!(floored >= -static_cast<float>(kVoxelBias) && floored < static_cast<float>(kVoxelBias))) return kNoVoxel;
      number[axis] = static_cast<std::int64_t>(floored);
    }
    return voxel_key(number[0], number[1], number[2]);
  }
};

}  // namespace opgate::ops::voxelize

// The voxel of a point, for every device.
#pragma once

#include <cmath>
#include <cstdint>

#include "signature/dtype.h"

namespace opgate::ops::voxelize {

/// The key of a point that is in no voxel. It is greater than every key of a voxel.
inline constexpr std::uint64_t kNoVoxel = ~std::uint64_t{0};

/// The batch numbers are 0 .. kBatches - 1.
inline constexpr int kBatches = 1 << 15;

OPGATE_HOST_DEVICE inline bool is_batch_number(float number) {
  return number >= 0 && number < static_cast<float>(kBatches) && std::floor(number) == number;
}

/// The parts of a key of 63 bits, from the lowest: x, y, z, and the batch number if points have one. Keys have the same
/// order as (batch, z, y, x). Numbers on an axis are in [-bias(), bias()).
class KeyLayout {
 public:
  OPGATE_HOST_DEVICE explicit KeyLayout(bool batched) : parts_(batched ? 4 : 3), bits_(batched ? 16 : 21) {}

  OPGATE_HOST_DEVICE int parts() const { return parts_; }
  OPGATE_HOST_DEVICE int bits() const { return bits_; }
  OPGATE_HOST_DEVICE std::int64_t bias() const { return std::int64_t{1} << (bits_ - 1); }
  OPGATE_HOST_DEVICE std::uint64_t mask() const { return (std::uint64_t{1} << bits_) - 1; }

  /// The voxel number on one axis (0 is x, 1 is y, 2 is z), or with axis 3 the batch number, as a part of a key.
  OPGATE_HOST_DEVICE std::uint64_t part(std::int64_t number, int axis) const {
    return static_cast<std::uint64_t>(axis < 3 ? number + bias() : number) << axis * bits_;
  }

  /// The number that `part` has put into a key.
  OPGATE_HOST_DEVICE std::int32_t number(std::uint64_t key, int axis) const {
    const auto part = static_cast<std::int64_t>(key >> axis * bits_ & mask());
    return static_cast<std::int32_t>(axis < 3 ? part - bias() : part);
  }

 private:
  int parts_, bits_;
};

/// The columns of a row of `coords`.
struct Columns {
  bool batched, reversed;

  OPGATE_HOST_DEVICE int count() const { return batched ? 4 : 3; }

  /// The part of the key (0 is x, 3 the batch number) that is in a column.
  OPGATE_HOST_DEVICE int axis(int column) const {
    if (batched && column == 0) return 3;
    const int place = batched ? column - 1 : column;
    return reversed ? 2 - place : place;
  }
};

/// The grid. Without a range it has no bounds, and voxel 0 begins at 0.
class VoxelGrid {
 public:
  /// `size` has three numbers and `range` is x0 y0 z0 x1 y1 z1, or null. All divisions are rounded to f32 as in NumPy,
  /// so none of them must become a product with a reciprocal. With `batched`, a point's row begins with the number of
  /// its cloud.
  OPGATE_HOST_DEVICE VoxelGrid(const float* size, const float* range, bool batched)
      : layout_(batched), batched_(batched), bound_(static_cast<float>(layout_.bias())) {
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

  const KeyLayout& layout() const { return layout_; }

  /// The key of the voxel of a point, a row ([batch,] x, y, z, ...). kNoVoxel if the point is outside of the range or
  /// of the voxel numbers or isn't finite, if its batch number is none, if a size isn't positive and finite, or if the
  /// lower corner isn't finite.
  OPGATE_HOST_DEVICE std::uint64_t key(const float* row) const {
    if (!valid_) return kNoVoxel;
    std::uint64_t key = 0;
    const float* point = row;
    if (batched_) {
      if (!is_batch_number(row[0])) return kNoVoxel;
      key = layout_.part(static_cast<std::int64_t>(row[0]), 3);
      ++point;
    }
    for (int axis = 0; axis < 3; ++axis) {
      const float coordinate = point[axis];
      if (!(coordinate >= low_[axis] && coordinate < high_[axis])) return kNoVoxel;
      const float floored = std::floor((coordinate - origin_[axis]) / size_[axis]);
      // The quotient of a point just below `high` may be rounded up to the number behind the last voxel.
      const float held = floored > last_[axis] ? last_[axis] : floored;
      if (!(held >= -bound_ && held < bound_)) return kNoVoxel;
      key |= layout_.part(static_cast<std::int64_t>(held), axis);
    }
    return key;
  }

 private:
  /// The number of voxels between two bounds: (high - low) / size, rounded to the nearest integer (half to even), and
  /// 1 at least.
  OPGATE_HOST_DEVICE static float voxels(float low, float high, float size) {
    const float rounded = std::rint((high - low) / size);
    return rounded > 1 ? rounded : 1;
  }

  KeyLayout layout_;
  bool batched_;
  float bound_;  ///< voxel numbers are in [-bound_, bound_)
  float size_[3];
  float origin_[3] = {0, 0, 0};
  float low_[3] = {-INFINITY, -INFINITY, -INFINITY}, high_[3] = {INFINITY, INFINITY, INFINITY};
  float last_[3] = {INFINITY, INFINITY, INFINITY};  ///< the number of the last voxel
  bool valid_ = true;
};

/// How the points of a voxel become its features.
enum class Reduction { mean, sum, max };

/// The greater of two numbers. A NaN is the greatest.
OPGATE_HOST_DEVICE inline float greater(float a, float b) { return (b > a) | (b != b) ? b : a; }

}  // namespace opgate::ops::voxelize

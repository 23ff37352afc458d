#include "voxel_of_point.h"

#include <algorithm>
#include <bit>
#include <random>

namespace opgate::ops::voxel_of_point {
namespace {

using voxelize::kNoVoxel;

/// An odd number that each process draws for itself, so that nobody can choose voxels whose keys share a slot.
std::uint64_t secret_factor() {
  static const std::uint64_t factor = [] {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random() | 1;
  }();
  return factor;
}

/// A hash table from the key of a voxel to its row. Of equal keys it has the lowest row.
class Rows {
 public:
  Rows(Context& context, std::int64_t voxels)
      : slots_(context.scratch<Slot>(static_cast<std::int64_t>(std::bit_ceil(2 * static_cast<std::uint64_t>(voxels))))),
        shift_(64 - std::countr_zero(slots_.size())) {
    std::fill(slots_.begin(), slots_.end(), Slot{kNoVoxel, -1});
  }

  /// Begins to load the memory that a key is looked up in.
  void prefetch(std::uint64_t key) const { __builtin_prefetch(&slots_[first_slot(key)]); }

  /// Rows must come in ascending order.
  void add(std::uint64_t key, std::int32_t row) {
    Slot& slot = slots_[slot_of(key)];
    if (slot.key == kNoVoxel) slot = {key, row};
  }

  /// The row of a key, or -1.
  std::int32_t row(std::uint64_t key) const { return slots_[slot_of(key)].row; }

 private:
  struct Slot {
    std::uint64_t key;  ///< kNoVoxel: empty
    std::int32_t row;
  };

  std::size_t first_slot(std::uint64_t key) const { return (key ^ key >> 32) * factor_ >> shift_; }

  /// The slot that has the key, or the empty one where it would be. At least half of the slots are empty.
  std::size_t slot_of(std::uint64_t key) const {
    std::size_t slot = first_slot(key);
    while (slots_[slot].key != key && slots_[slot].key != kNoVoxel) slot = (slot + 1) & (slots_.size() - 1);
    return slot;
  }

  std::span<Slot> slots_;
  int shift_;
  std::uint64_t factor_ = secret_factor();
};

/// Calls use(key, i) for the keys of [begin, end), in this order. The memory for a block of keys is loaded together.
template <typename KeyOf, typename Use>
void for_each_key(const Rows& rows, std::int64_t begin, std::int64_t end, const KeyOf& key_of, const Use& use) {
  constexpr std::int64_t kBlock = 32;
  std::uint64_t keys[kBlock];
  for (std::int64_t first = begin; first < end; first += kBlock) {
    const std::int64_t count = std::min(kBlock, end - first);
    for (std::int64_t i = 0; i < count; ++i) {
      keys[i] = key_of(first + i);
      rows.prefetch(keys[i]);
    }
    for (std::int64_t i = 0; i < count; ++i) use(keys[i], first + i);
  }
}

struct Cpu : Checked {
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n"), c = in.size("c"), v = in.size("v");
    const float* const size = in["size"].data<float>();
    const float* const range = in.has("range") ? in["range"].data<float>() : nullptr;
    const auto* const points = in["points"].data<float>();
    const auto* const coords = in["coords"].data<std::int32_t>();
    auto* const voxel = out["voxel"].data<std::int32_t>();
    const voxelize::Columns columns = voxelize::columns_of(attributes);
    OPGATE_RETURN_IF_ERROR(voxelize::check_grid(size, range));
    if (columns.batched) OPGATE_RETURN_IF_ERROR(voxelize::check_batch_numbers(context, points, n, c));
    if (v == 0) return std::fill_n(voxel, n, -1), Status();
    const voxelize::VoxelGrid grid(size, range, columns.batched);
    Rows rows(context, v);
    for_each_key(
        rows, 0, v, [&](std::int64_t row) { return key_of(grid.layout(), columns, coords + row * columns.count()); },
        [&](std::uint64_t key, std::int64_t row) {
          if (key != kNoVoxel) rows.add(key, static_cast<std::int32_t>(row));
        });
    context.parallel_for(n, 4096, [&](std::int64_t begin, std::int64_t end) {
      const voxelize::VoxelGrid own = grid;  // a copy, which no write to `voxel` can change
      for_each_key(
          rows, begin, end, [&](std::int64_t i) { return own.key(points + i * c); },
          [&](std::uint64_t key, std::int64_t i) { voxel[i] = rows.row(key); });
    });
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::voxel_of_point

OPGATE_CPU_KERNEL(VoxelOfPoint, opgate::ops::voxel_of_point::Cpu)

#include "voxelize.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "formula.h"

namespace opgate::ops::voxelize {
namespace {

/// A point in a voxel.
struct Entry {
  std::uint64_t key;
  std::uint32_t point;
};

/// Sorts by key, with a radix sort from the lowest digit on. It keeps the order of entries with equal keys. A digit
/// belongs to one axis and is relative to the lowest number on that axis. So the upper digit of an axis with few voxels
/// is always 0 and costs nothing.
class RadixSort {
 public:
  explicit RadixSort(std::span<const Entry> entries) {
    for (int axis = 0; axis < 3; ++axis) {
      const std::uint64_t mask = ((std::uint64_t{1} << kVoxelBits) - 1) << axis * kVoxelBits;
      std::uint64_t least = mask;
      for (const Entry& entry : entries) least = std::min(least, entry.key & mask);
      lowest_ |= least;
    }
  }

  /// Returns the sorted entries, which are in `entries` or in `other`. Both have the same size.
  std::span<Entry> run(std::span<Entry> entries, std::span<Entry> other) const {
    for (int axis = 0; axis < 3; ++axis) {
      const int low = axis * kVoxelBits;
      if (pass(entries, other, low, kLowDigit)) std::swap(entries, other);
      if (pass(entries, other, low + kLowDigit, kVoxelBits - kLowDigit)) std::swap(entries, other);
    }
    return entries;
  }

 private:
  static constexpr int kLowDigit = 11;

  /// Sorts by one digit. Returns false if the digit is the same everywhere.
  bool pass(std::span<const Entry> from, std::span<Entry> to, int shift, int bits) const {
    const auto digit = [&](const Entry& entry) { return (entry.key - lowest_) >> shift & ((1u << bits) - 1); };
    std::array<std::uint32_t, 1 << kLowDigit> starts{};  // first the counts of the digits
    for (const Entry& entry : from) ++starts[digit(entry)];
    if (starts[digit(from[0])] == from.size()) return false;
    std::uint32_t begin = 0;
    for (std::uint32_t& start : starts) begin += std::exchange(start, begin);
    for (const Entry& entry : from) to[starts[digit(entry)]++] = entry;
    return true;
  }

  std::uint64_t lowest_ = 0;  ///< the key of the lowest numbers on the axes
};

Status check_grid(const float* size, const float* range) {
  constexpr const char* kAxes[] = {"x", "y", "z"};
  for (int axis = 0; axis < 3; ++axis) {
    if (!(size[axis] > 0) || std::isinf(size[axis])) {
      return Status::invalid("input 'size': expected positive finite sizes, got " + std::to_string(size[axis]) +
                             " for " + kAxes[axis]);
    }
    if (range && !std::isfinite(range[axis])) {
      return Status::invalid("input 'range': expected a finite lower corner, got " + std::to_string(range[axis]) +
                             " for " + kAxes[axis]);
    }
  }
  return {};
}

struct Cpu : Checked {
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const std::int64_t n = in.size("n"), c = in.size("c");
    const float* const size = in["size"].data<float>();
    const float* const range = in.has("range") ? in["range"].data<float>() : nullptr;
    OPGATE_RETURN_IF_ERROR(check_grid(size, range));
    const VoxelGrid grid(size, range);
    const auto* const points = in["points"].data<float>();
    const std::span<const Entry> entries = sorted_entries(context, grid, points, n, c);
    const std::span<const std::uint32_t> starts = voxel_starts(context, entries);
    const auto v = static_cast<std::int64_t>(starts.size()) - 1;
    OPGATE_RETURN_IF_ERROR(out.bind("v", v));
    write_voxels(context, points, c, entries, starts, out);
    return {};
  }

 private:
  /// The points that are in a voxel, sorted by voxel. The points of a voxel keep their order.
  static std::span<const Entry> sorted_entries(Context& context, const VoxelGrid& grid, const float* points,
                                               std::int64_t n, std::int64_t c) {
    const std::span<Entry> entries = context.scratch<Entry>(n), other = context.scratch<Entry>(n);
    context.parallel_for(n, 4096, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        other[static_cast<std::size_t>(i)] = {grid.key(points + i * c), static_cast<std::uint32_t>(i)};
      }
    });
    const auto end = std::copy_if(other.begin(), other.end(), entries.begin(),
                                  [](const Entry& entry) { return entry.key != kNoVoxel; });
    const auto count = static_cast<std::size_t>(end - entries.begin());
    if (count == 0) return {};
    return RadixSort(entries.first(count)).run(entries.first(count), other.first(count));
  }

  /// The index of the first entry of each voxel, and the end of the last voxel.
  static std::span<const std::uint32_t> voxel_starts(Context& context, std::span<const Entry> entries) {
    const std::span<std::uint32_t> starts =
        context.scratch<std::uint32_t>(static_cast<std::int64_t>(entries.size()) + 1);
    std::size_t v = 0;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i == 0 || entries[i].key != entries[i - 1].key) starts[v++] = static_cast<std::uint32_t>(i);
    }
    starts[v] = static_cast<std::uint32_t>(entries.size());
    return starts.first(v + 1);
  }

  static void write_voxels(Context& context, const float* points, std::int64_t c, std::span<const Entry> entries,
                           std::span<const std::uint32_t> starts, Outputs& out) {
    auto* const features = out["features"].data<float>();
    auto* const coords = out["coords"].data<std::int32_t>();
    auto* const counts = out["counts"].data<std::int32_t>();
    const auto voxels = static_cast<std::int64_t>(starts.size()) - 1;
    context.parallel_for(voxels, 1024, [&](std::int64_t begin, std::int64_t end) {
      std::vector<double> sums(static_cast<std::size_t>(c));
      for (std::int64_t i = begin; i < end; ++i) {
        const auto voxel = static_cast<std::size_t>(i);
        std::fill(sums.begin(), sums.end(), 0.0);
        for (std::uint32_t entry = starts[voxel]; entry < starts[voxel + 1]; ++entry) {
          const float* point = points + entries[entry].point * c;
          for (std::int64_t k = 0; k < c; ++k) sums[static_cast<std::size_t>(k)] += point[k];
        }
        const std::uint32_t count = starts[voxel + 1] - starts[voxel];
        for (std::int64_t k = 0; k < c; ++k) {
          features[i * c + k] = static_cast<float>(sums[static_cast<std::size_t>(k)] / count);
        }
        for (int axis = 0; axis < 3; ++axis) coords[3 * i + axis] = voxel_number(entries[starts[voxel]].key, axis);
        counts[i] = static_cast<std::int32_t>(count);
      }
    });
  }
};

}  // namespace
}  // namespace opgate::ops::voxelize

OPGATE_CPU_KERNEL(Voxelize, opgate::ops::voxelize::Cpu)

#include "voxelize.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace opgate::ops::voxelize {
namespace {

/// A point in a voxel.
struct Entry {
  std::uint64_t key;
  std::uint32_t point;
};

/// Sorts by key, with a radix sort from the lowest digit on. It keeps the order of entries with equal keys. A digit
/// belongs to one axis (or to the batch numbers) and is relative to the lowest number on that axis. So the upper digit
/// of an axis with few voxels is always 0 and costs nothing.
class RadixSort {
 public:
  RadixSort(const KeyLayout& layout, std::span<const Entry> entries) : layout_(layout) {
    for (int axis = 0; axis < layout.parts(); ++axis) {
      const std::uint64_t mask = layout.mask() << axis * layout.bits();
      std::uint64_t least = mask;
      for (const Entry& entry : entries) least = std::min(least, entry.key & mask);
      lowest_ |= least;
    }
  }

  /// Returns the sorted entries, which are in `entries` or in `other`. Both have the same size.
  std::span<Entry> run(std::span<Entry> entries, std::span<Entry> other) const {
    for (int axis = 0; axis < layout_.parts(); ++axis) {
      const int low = axis * layout_.bits();
      if (pass(entries, other, low, kLowDigit)) std::swap(entries, other);
      if (pass(entries, other, low + kLowDigit, layout_.bits() - kLowDigit)) std::swap(entries, other);
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

  KeyLayout layout_;
  std::uint64_t lowest_ = 0;  ///< the key of the lowest numbers on the axes
};

struct Cpu : Checked {
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n"), c = in.size("c");
    const float* const size = in["size"].data<float>();
    const float* const range = in.has("range") ? in["range"].data<float>() : nullptr;
    OPGATE_RETURN_IF_ERROR(check_grid(size, range));
    const Settings settings(attributes);
    const auto* const points = in["points"].data<float>();
    if (settings.columns.batched) OPGATE_RETURN_IF_ERROR(check_batch_numbers(context, points, n, c));
    const VoxelGrid grid(size, range, settings.columns.batched);
    std::span<Entry> entries = sorted_entries(context, grid, points, n, c);
    std::span<const std::uint32_t> starts = voxel_starts(context, entries);
    if (static_cast<std::int64_t>(starts.size()) - 1 > settings.max_voxels) {
      entries = first_voxels(context, entries, starts, settings.max_voxels);
      starts = voxel_starts(context, entries);
    }
    OPGATE_RETURN_IF_ERROR(out.bind("v", static_cast<std::int64_t>(starts.size()) - 1));
    const Voxels voxels{points, c, settings, grid.layout(), entries, starts};
    if (settings.reduction == Reduction::max) {
      write_voxels(context, voxels, out, [](float* to, const Voxel& voxel) {
        std::copy_n(voxel.point(0), voxel.columns, to);
        for (std::int64_t i = 1; i < voxel.count; ++i) {
          const float* const point = voxel.point(i);
          for (std::int64_t k = 0; k < voxel.columns; ++k) to[k] = greater(to[k], point[k]);
        }
      });
    } else {
      const bool mean = settings.reduction == Reduction::mean;
      write_voxels(context, voxels, out, [mean](float* to, const Voxel& voxel) {
        if (voxel.count == 1) {
          const float* const point = voxel.point(0);
          for (std::int64_t k = 0; k < voxel.columns; ++k) to[k] = point[k] + 0.0f;  // a sum is never -0
          return;
        }
        double* const sums = voxel.sums;
        std::fill_n(sums, voxel.columns, 0.0);
        for (std::int64_t i = 0; i < voxel.count; ++i) {
          const float* const point = voxel.point(i);
          for (std::int64_t k = 0; k < voxel.columns; ++k) sums[k] += point[k];
        }
        const double divisor = mean ? static_cast<double>(voxel.count) : 1.0;
        for (std::int64_t k = 0; k < voxel.columns; ++k) to[k] = static_cast<float>(sums[k] / divisor);
      });
    }
    return {};
  }

 private:
  /// The points that are in a voxel, sorted by voxel. The points of a voxel keep their order.
  static std::span<Entry> sorted_entries(Context& context, const VoxelGrid& grid, const float* points, std::int64_t n,
                                         std::int64_t c) {
    const std::span<Entry> entries = context.scratch<Entry>(n), other = context.scratch<Entry>(n);
    context.parallel_for(n, 4096, [&](std::int64_t begin, std::int64_t end) {
      const VoxelGrid own = grid;  // a copy, which no write to `other` can change
      for (std::int64_t i = begin; i < end; ++i) {
        other[static_cast<std::size_t>(i)] = {own.key(points + i * c), static_cast<std::uint32_t>(i)};
      }
    });
    const auto end = std::copy_if(other.begin(), other.end(), entries.begin(),
                                  [](const Entry& entry) { return entry.key != kNoVoxel; });
    const auto count = static_cast<std::size_t>(end - entries.begin());
    if (count == 0) return {};
    return RadixSort(grid.layout(), entries.first(count)).run(entries.first(count), other.first(count));
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

  /// The entries of the `count` voxels whose first points come first, moved to the front. There are more voxels.
  static std::span<Entry> first_voxels(Context& context, std::span<Entry> entries,
                                       std::span<const std::uint32_t> starts, std::int64_t count) {
    const auto voxels = static_cast<std::int64_t>(starts.size()) - 1;
    const std::span<std::uint32_t> firsts = context.scratch<std::uint32_t>(voxels);
    for (std::size_t voxel = 0; voxel < firsts.size(); ++voxel) firsts[voxel] = entries[starts[voxel]].point;
    const auto last = firsts.begin() + (count - 1);
    std::nth_element(firsts.begin(), last, firsts.end());
    auto end = entries.begin();
    for (std::size_t voxel = 0; voxel < firsts.size(); ++voxel) {
      const auto begin = entries.begin() + starts[voxel];
      if (begin->point <= *last) end = std::copy(begin, entries.begin() + starts[voxel + 1], end);
    }
    return entries.first(static_cast<std::size_t>(end - entries.begin()));
  }

  struct Voxels {
    const float* points;
    std::int64_t c;
    const Settings& settings;
    const KeyLayout& layout;
    std::span<const Entry> entries;
    std::span<const std::uint32_t> starts;
  };

  /// The points of one voxel, in the order of the input.
  struct Voxel {
    const Entry* entries;
    std::int64_t count;
    const float* points;  ///< the first column that becomes a feature
    std::int64_t c, columns;
    double* sums;  ///< memory for a sum of each column

    const float* point(std::int64_t i) const { return points + entries[i].point * c; }
  };

  /// Writes the rows of all voxels. `reduce` writes the features of one.
  template <typename Reduce>
  static void write_voxels(Context& context, const Voxels& voxels, Outputs& out, const Reduce& reduce) {
    auto* const features = out["features"].data<float>();
    auto* const coords = out["coords"].data<std::int32_t>();
    auto* const counts = out["counts"].data<std::int32_t>();
    const Columns columns = voxels.settings.columns;
    const std::int64_t batch = columns.batched ? 1 : 0, width = voxels.c - batch;
    const auto write = [&](std::int64_t begin, std::int64_t end) {
      // Copies, which no write to an output can change.
      const KeyLayout layout = voxels.layout;
      const int axes[] = {columns.axis(0), columns.axis(1), columns.axis(2)};
      const std::int64_t most = voxels.settings.max_points, c = voxels.c;
      const Entry* const entries = voxels.entries.data();
      const std::uint32_t* const starts = voxels.starts.data();
      std::vector<double> sums(static_cast<std::size_t>(width));
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t start = starts[i], count = starts[i + 1] - start;
        const Voxel voxel{entries + start, std::min(count, most), voxels.points + batch, c, width, sums.data()};
        reduce(features + i * width, voxel);
        const std::uint64_t key = voxel.entries->key;
        std::int32_t* const coord = coords + i * columns.count();
        for (int column = 0; column < 3; ++column) coord[column] = layout.number(key, axes[column]);
        if (columns.batched) coord[3] = layout.number(key, columns.axis(3));
        counts[i] = static_cast<std::int32_t>(voxel.count);
      }
    };
    context.parallel_for(static_cast<std::int64_t>(voxels.starts.size()) - 1, 1024, write);
  }
};

}  // namespace
}  // namespace opgate::ops::voxelize

OPGATE_CPU_KERNEL(Voxelize, opgate::ops::voxelize::Cpu)

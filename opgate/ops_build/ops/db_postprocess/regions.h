// The connected regions of a map of bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

namespace opgate::ops::db_postprocess {

/// Pixels [first, last] of a row.
struct Run {
  std::int32_t row, first, last;
};

/// The regions whose pixels touch at a side or a corner. They are ordered by their first pixels, row by row.
class Regions {
 public:
  /// Adds the next row. `mask` has `width` bytes that are 0 outside of all regions.
  void add_row(std::int32_t row, const std::uint8_t* mask, std::int32_t width) {
    const std::size_t begin = runs_.size();
    std::size_t above = last_row_begin_;
    for (std::int32_t x = 0; (x = next(mask, x, width, true)) < width;) {
      const Run run{row, x, next(mask, x, width, false) - 1};
      const std::size_t own = runs_.size();
      runs_.push_back(run);
      parents_.push_back(static_cast<std::int32_t>(own));
      while (above < begin && runs_[above].last + 1 < run.first) ++above;
      for (std::size_t i = above; i < begin && runs_[i].first <= run.last + 1; ++i) join(i, own);
      x = run.last + 1;
    }
    last_row_begin_ = begin;
  }

  /// Calls use(runs) for each region, with its runs row by row, until it returns false.
  template <typename Use>
  void for_each(Use use) {
    std::vector<std::int32_t> sizes, number(runs_.size());
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const std::size_t root = root_of(i);
      if (root == i) {  // the root is the first run of its region
        number[i] = static_cast<std::int32_t>(sizes.size());
        sizes.push_back(0);
      }
      number[i] = number[root];
      ++sizes[static_cast<std::size_t>(number[i])];
    }
    std::vector<std::size_t> ends(sizes.size());
    std::exclusive_scan(sizes.begin(), sizes.end(), ends.begin(), std::size_t{0});
    std::vector<Run> sorted(runs_.size());
    for (std::size_t i = 0; i < runs_.size(); ++i) sorted[ends[static_cast<std::size_t>(number[i])]++] = runs_[i];
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      if (!use(std::span<const Run>(sorted).subspan(begin, end - begin))) return;
      begin = end;
    }
  }

 private:
  /// The first pixel from x on that is in a region, or that is in none. `width` if there is none.
  static std::int32_t next(const std::uint8_t* mask, std::int32_t x, std::int32_t width, bool inside) {
    const void* const found = std::memchr(mask + x, inside, static_cast<std::size_t>(width - x));
    return found ? static_cast<std::int32_t>(static_cast<const std::uint8_t*>(found) - mask) : width;
  }

  std::size_t root_of(std::size_t i) {
    while (parents_[i] != static_cast<std::int32_t>(i)) {
      parents_[i] = parents_[static_cast<std::size_t>(parents_[i])];
      i = static_cast<std::size_t>(parents_[i]);
    }
    return i;
  }

  void join(std::size_t a, std::size_t b) {
    a = root_of(a);
    b = root_of(b);
    parents_[std::max(a, b)] = static_cast<std::int32_t>(std::min(a, b));
  }

  std::vector<Run> runs_;
  std::vector<std::int32_t> parents_;  ///< another run of the region, or the run itself
  std::size_t last_row_begin_ = 0;     ///< the first run of the row above
};

}  // namespace opgate::ops::db_postprocess

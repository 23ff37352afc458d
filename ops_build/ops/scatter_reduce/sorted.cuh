// Rows in the order of their keys, on CUDA.
#pragma once

#include "core/sorted.cuh"

namespace opgate::ops::scatter_reduce {

/// The rows, sorted by their keys.
struct Sorted {
  struct Range {
    std::int64_t begin, end;
  };
  std::int64_t n;
  const std::uint32_t *keys, *rows;

  /// `sorting` has sorted the rows, which are its things.
  static Sorted of(const SortedKeys& sorting) {
    return {sorting.count(), sorting.sorted_keys.data(), sorting.sorted_things.data()};
  }

  __device__ Range range(std::int64_t output) const {
    const auto key = static_cast<std::uint32_t>(output);
    return {first_of(keys, n, key), first_of(keys, n, key + 1)};
  }
  __device__ std::int64_t row(std::int64_t i) const { return rows[i]; }
};

}  // namespace opgate::ops::scatter_reduce

// Rows in the order of their keys, on CUDA.
#pragma once

#include "kernel_toolkit/sorted.cuh"

namespace opgate::ops::scatter_reduce {

/// The rows, sorted by their keys.
struct Sorted {
  std::int64_t n;
  const std::uint32_t *keys, *rows;

  /// `sorting` has sorted the rows, which are its values.
  static Sorted of(const SortedKeys& sorting) {
    return {sorting.count(), sorting.sorted_keys.data(), sorting.sorted_values.data()};
  }

  __device__ KeyRange range(std::int64_t output) const { return KeyRange::of(keys, n, output); }
  __device__ std::int64_t row(std::int64_t i) const { return rows[i]; }
};

}  // namespace opgate::ops::scatter_reduce

// Rows in the order of their keys, on CUDA.
#pragma once

#include <cub/device/device_radix_sort.cuh>

#include "core/elementwise.cuh"
#include "core/sorted.cuh"

namespace opgate::ops::scatter_reduce {

/// The rows, sorted by their keys.
struct Sorted {
  struct Range {
    std::int64_t begin, end;
  };
  std::int64_t n;
  const std::uint32_t *keys, *rows;

  __device__ Range range(std::int64_t output) const {
    const auto key = static_cast<std::uint32_t>(output);
    return {first_of(keys, n, key), first_of(keys, n, key + 1)};
  }
  __device__ std::int64_t row(std::int64_t i) const { return rows[i]; }
};

/// Memory for sorting. A kernel writes `keys` and `rows`.
class Sorting {
 public:
  std::span<std::uint32_t> keys, rows;

  static Sorting take(Workspace& workspace, std::int64_t n) {
    std::size_t bytes = 0;
    if (sort_pairs(nullptr, bytes, nullptr, nullptr, nullptr, nullptr, n, nullptr) != cudaSuccess)
      throw std::runtime_error("CUB does not say how much memory it wants");
    Sorting sorting;
    sorting.keys = workspace.take<std::uint32_t>(n);
    sorting.sorted_keys_ = workspace.take<std::uint32_t>(n);
    sorting.rows = workspace.take<std::uint32_t>(n);
    sorting.sorted_rows_ = workspace.take<std::uint32_t>(n);
    sorting.storage_ = workspace.take<char>(static_cast<std::int64_t>(std::max<std::size_t>(bytes, 1)));
    return sorting;
  }

  /// Sorts. Rows of equal keys keep their order, because a radix sort is stable.
  Status sort(cudaStream_t stream) const {
    std::size_t bytes = storage_.size();
    return cuda::status(sort_pairs(storage_.data(), bytes, keys.data(), sorted_keys_.data(), rows.data(),
                                   sorted_rows_.data(), static_cast<std::int64_t>(keys.size()), stream),
                        "sorting");
  }

  Sorted sorted() const { return {static_cast<std::int64_t>(keys.size()), sorted_keys_.data(), sorted_rows_.data()}; }

 private:
  static cudaError_t sort_pairs(void* storage, std::size_t& bytes, const std::uint32_t* keys,
                                std::uint32_t* sorted_keys, const std::uint32_t* rows, std::uint32_t* sorted_rows,
                                std::int64_t n, cudaStream_t stream) {
    return cub::DeviceRadixSort::SortPairs(storage, bytes, keys, sorted_keys, rows, sorted_rows, n, 0, 32, stream);
  }

  std::span<std::uint32_t> sorted_keys_, sorted_rows_;
  std::span<char> storage_;
};

}  // namespace opgate::ops::scatter_reduce

#include "scatter_reduce.h"

#include <cub/device/device_radix_sort.cuh>

#include "core/sorted.cuh"
#include "ops/segment_reduce/rows.cuh"

namespace opgate::ops::scatter_reduce {
namespace {

using segment_reduce::columns_of;
using segment_reduce::kThreads;

/// Writes the key of each row: its index. A row whose index is wrong gets a key behind all others.
__global__ void __launch_bounds__(kThreads)
    find_keys(std::int64_t n, std::int64_t size, const std::int64_t* index, std::uint32_t* keys, std::uint32_t* rows) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  keys[i] = static_cast<std::uint32_t>(index[i] >= 0 && index[i] < size ? index[i] : size);
  rows[i] = static_cast<std::uint32_t>(i);
}

/// The rows, sorted by their index.
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

cudaError_t sort_pairs(void* storage, std::size_t& bytes, const std::uint32_t* keys, std::uint32_t* sorted_keys,
                       const std::uint32_t* rows, std::uint32_t* sorted_rows, std::int64_t n, cudaStream_t stream) {
  // A radix sort is stable: the rows of an output keep their order.
  return cub::DeviceRadixSort::SortPairs(storage, bytes, keys, sorted_keys, rows, sorted_rows, n, 0, 32, stream);
}

struct Cuda : Checked {
  struct Memory {
    std::span<std::uint32_t> keys, sorted_keys, rows, sorted_rows;
    std::span<char> storage;
  };

  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    const std::int64_t n = in.size("n");
    std::size_t bytes = 0;
    if (sort_pairs(nullptr, bytes, nullptr, nullptr, nullptr, nullptr, n, nullptr) != cudaSuccess)
      throw std::runtime_error("CUB does not say how much memory it wants");
    return {workspace.take<std::uint32_t>(n), workspace.take<std::uint32_t>(n), workspace.take<std::uint32_t>(n),
            workspace.take<std::uint32_t>(n),
            workspace.take<char>(static_cast<std::int64_t>(std::max<std::size_t>(bytes, 1)))};
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n"), size = in.size("dim_size"), columns = columns_of(in["x"]);
    if (size == 0 || columns == 0) return {};
    const Memory memory = workspace(context.workspace(), in, attributes);
    const cudaStream_t stream = stream_of(context);
    if (n > 0) {
      find_keys<<<blocks_for(n, kThreads), kThreads, 0, stream>>>(n, size, in["index"].data<std::int64_t>(),
                                                                  memory.keys.data(), memory.rows.data());
      OPGATE_RETURN_IF_ERROR(launched());
      std::size_t bytes = memory.storage.size();
      OPGATE_RETURN_IF_ERROR(
          cuda::status(sort_pairs(memory.storage.data(), bytes, memory.keys.data(), memory.sorted_keys.data(),
                                  memory.rows.data(), memory.sorted_rows.data(), n, stream),
                       "sorting"));
    }
    const Sorted sorted{n, memory.sorted_keys.data(), memory.sorted_rows.data()};
    return segment_reduce::with_reduction(attributes, [&]<typename Op>(bool mean) {
      return segment_reduce::launch<Op>(context, size, columns, in["x"].data<T>(), sorted, mean, out["y"].data<T>());
    });
  }
};

}  // namespace
}  // namespace opgate::ops::scatter_reduce

OPGATE_CUDA_KERNEL(ScatterReduce, opgate::ops::scatter_reduce::Cuda)

#include "voxelize.h"

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "core/elementwise.cuh"
#include "formula.h"

namespace opgate::ops::voxelize {
namespace {

constexpr int kThreads = 256;

__device__ std::int64_t thread_index() { return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

/// Writes the key of each point. `range` may be null.
__global__ void __launch_bounds__(kThreads)
    find_keys(std::int64_t n, std::int64_t c, const float* points, const float* size, const float* range,
              std::uint64_t* keys, std::uint32_t* points_of_keys) {
  const std::int64_t i = thread_index();
  if (i >= n) return;
  keys[i] = VoxelGrid(size, range).key(points + i * c);
  points_of_keys[i] = static_cast<std::uint32_t>(i);
}

/// The points, sorted by voxel. Points that are in no voxel come last.
struct Sorted {
  std::int64_t n;
  const std::uint64_t* keys;
  const std::uint32_t* points;

  __device__ bool in_voxel(std::int64_t i) const { return keys[i] != kNoVoxel; }
  __device__ bool begins(std::int64_t i) const { return in_voxel(i) && (i == 0 || keys[i - 1] != keys[i]); }
  __device__ bool is_last(std::int64_t i) const { return in_voxel(i) && (i + 1 == n || !in_voxel(i + 1)); }
};

__global__ void __launch_bounds__(kThreads) mark_beginnings(Sorted sorted, std::int32_t* begun) {
  const std::int64_t i = thread_index();
  if (i < sorted.n) begun[i] = sorted.begins(i) ? 1 : 0;
}

/// Finds where each voxel begins, where the last one ends, and how many there are. `begun` counts the voxels that begin
/// up to each point.
__global__ void __launch_bounds__(kThreads)
    find_starts(Sorted sorted, const std::int32_t* begun, std::uint32_t* starts, std::int64_t* v) {
  const std::int64_t i = thread_index();
  if (i >= sorted.n) return;
  if (sorted.begins(i)) starts[begun[i] - 1] = static_cast<std::uint32_t>(i);
  if (sorted.is_last(i)) {
    starts[begun[i]] = static_cast<std::uint32_t>(i + 1);
    *v = begun[i];
  }
  if (i == 0 && !sorted.in_voxel(0)) *v = 0;
}

struct Voxels {
  const std::uint32_t* starts;
  const std::int64_t* v;
  float* features;
  std::int32_t *coords, *counts;
};

/// A thread computes `lanes` columns of a voxel. It adds the points in their order, as the CPU does.
template <int lanes>
__global__ void __launch_bounds__(kThreads)
    write_voxels(Sorted sorted, const float* points, std::int64_t c, Voxels voxels) {
  using Vector = elementwise::Lanes<float, lanes>;
  const std::int64_t columns = c / lanes;
  const std::int64_t voxel = thread_index() / columns, column = thread_index() % columns;
  if (voxel >= *voxels.v) return;
  const std::uint32_t begin = voxels.starts[voxel], end = voxels.starts[voxel + 1];
  double sums[lanes] = {};
  for (std::uint32_t i = begin; i < end; ++i) {
    const Vector point = reinterpret_cast<const Vector*>(points)[sorted.points[i] * columns + column];
#pragma unroll
    for (int lane = 0; lane < lanes; ++lane) sums[lane] += point.values[lane];
  }
  Vector mean;
#pragma unroll
  for (int i = 0; i < lanes; ++i) mean.values[i] = static_cast<float>(sums[i] / (end - begin));
  reinterpret_cast<Vector*>(voxels.features)[voxel * columns + column] = mean;
  if (column > 0) return;
  for (int axis = 0; axis < 3; ++axis) voxels.coords[3 * voxel + axis] = voxel_number(sorted.keys[begin], axis);
  voxels.counts[voxel] = static_cast<std::int32_t>(end - begin);
}

/// Sorts with CUB. If `storage` is null, sets `bytes` to the memory that CUB needs.
cudaError_t sort_pairs(void* storage, std::size_t& bytes, const std::uint64_t* keys, std::uint64_t* sorted_keys,
                       const std::uint32_t* points, std::uint32_t* sorted_points, std::int64_t n, cudaStream_t stream) {
  // A radix sort is stable: the points of a voxel keep their order.
  return cub::DeviceRadixSort::SortPairs(storage, bytes, keys, sorted_keys, points, sorted_points, n, 0, 64, stream);
}

/// Replaces counts by their running sums, with CUB. If `storage` is null, sets `bytes` to the memory that CUB needs.
cudaError_t sum_up(void* storage, std::size_t& bytes, std::int32_t* counts, std::int64_t n, cudaStream_t stream) {
  return cub::DeviceScan::InclusiveSum(storage, bytes, counts, counts, n, stream);
}

/// The bytes of storage that are enough for both functions.
std::int64_t storage_bytes(std::int64_t n) {
  std::size_t sort = 0, sum = 0;
  if (sort_pairs(nullptr, sort, nullptr, nullptr, nullptr, nullptr, n, nullptr) != cudaSuccess ||
      sum_up(nullptr, sum, nullptr, n, nullptr) != cudaSuccess) {
    throw std::runtime_error("CUB does not say how much memory it wants");
  }
  return static_cast<std::int64_t>(std::max<std::size_t>({sort, sum, 1}));
}

struct Cuda : Checked {
  struct Memory {
    std::span<std::uint64_t> keys, sorted_keys;
    std::span<std::uint32_t> points, sorted_points;
    std::span<std::int32_t> begun;
    std::span<std::uint32_t> starts;
    std::span<char> storage;
  };

  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    const std::int64_t n = in.size("n");
    return {workspace.take<std::uint64_t>(n),      workspace.take<std::uint64_t>(n),
            workspace.take<std::uint32_t>(n),      workspace.take<std::uint32_t>(n),
            workspace.take<std::int32_t>(n),       workspace.take<std::uint32_t>(n + 1),
            workspace.take<char>(storage_bytes(n))};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n"), c = in.size("c");
    std::int64_t* const v = out.device_size("v");
    const cudaStream_t stream = stream_of(context);
    if (n == 0) return cuda::status(cudaMemsetAsync(v, 0, sizeof *v, stream), "writing a size");
    const auto* const points = in["points"].data<float>();
    const float* const range = in.has("range") ? in["range"].data<float>() : nullptr;
    const Memory memory = workspace(context.workspace(), in, attributes);
    const unsigned blocks = blocks_for(n, kThreads);
    std::size_t bytes = memory.storage.size();

    find_keys<<<blocks, kThreads, 0, stream>>>(n, c, points, in["size"].data<float>(), range, memory.keys.data(),
                                               memory.points.data());
    OPGATE_RETURN_IF_ERROR(launched());
    OPGATE_RETURN_IF_ERROR(
        cuda::status(sort_pairs(memory.storage.data(), bytes, memory.keys.data(), memory.sorted_keys.data(),
                                memory.points.data(), memory.sorted_points.data(), n, stream),
                     "sorting"));
    const Sorted sorted{n, memory.sorted_keys.data(), memory.sorted_points.data()};
    mark_beginnings<<<blocks, kThreads, 0, stream>>>(sorted, memory.begun.data());
    OPGATE_RETURN_IF_ERROR(launched());
    OPGATE_RETURN_IF_ERROR(
        cuda::status(sum_up(memory.storage.data(), bytes, memory.begun.data(), n, stream), "summing up"));
    find_starts<<<blocks, kThreads, 0, stream>>>(sorted, memory.begun.data(), memory.starts.data(), v);
    OPGATE_RETURN_IF_ERROR(launched());

    const Voxels voxels{memory.starts.data(), v, out["features"].data<float>(), out["coords"].data<std::int32_t>(),
                        out["counts"].data<std::int32_t>()};
    // Only the device knows how many voxels there are, so there are threads for the greatest possible number.
    if (c % 4 == 0 && elementwise::aligned(points) && elementwise::aligned(voxels.features)) {
      write_voxels<4><<<blocks_for(n * (c / 4), kThreads), kThreads, 0, stream>>>(sorted, points, c, voxels);
    } else {
      write_voxels<1><<<blocks_for(n * c, kThreads), kThreads, 0, stream>>>(sorted, points, c, voxels);
    }
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::voxelize

OPGATE_CUDA_KERNEL(Voxelize, opgate::ops::voxelize::Cuda)

#include "voxelize.h"

#include <cub/device/device_scan.cuh>

#include "kernel_toolkit/sorted.cuh"

namespace opgate::ops::voxelize {
namespace {

constexpr int kThreads = 256;

__device__ std::int64_t thread_index() { return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

/// Writes the key of each point. `range` may be null.
__global__ void __launch_bounds__(kThreads)
    find_keys(std::int64_t n, std::int64_t c, bool batched, const float* points, const float* size, const float* range,
              std::uint64_t* keys, std::uint32_t* points_of_keys) {
  const std::int64_t i = thread_index();
  if (i >= n) return;
  keys[i] = VoxelGrid(size, range, batched).key(points + i * c);
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

/// Marks the points that are the first of their voxels, in the order of the input.
__global__ void __launch_bounds__(kThreads) mark_first_points(Sorted sorted, std::int32_t* first) {
  const std::int64_t i = thread_index();
  if (i < sorted.n) first[sorted.points[i]] = sorted.begins(i) ? 1 : 0;
}

/// Marks the voxels that begin first in the order of the input, and counts them. `voxels` is the number of all voxels.
/// `begun` counts the voxels that begin up to each point of the input.
__global__ void __launch_bounds__(kThreads)
    mark_kept(Sorted sorted, const std::uint32_t* starts, const std::int64_t* voxels, const std::int32_t* begun,
              std::int64_t most, std::int32_t* kept, std::int64_t* v) {
  const std::int64_t voxel = thread_index();
  if (voxel >= sorted.n) return;
  kept[voxel] = voxel < *voxels && begun[sorted.points[starts[voxel]]] <= most ? 1 : 0;
  if (voxel == 0) *v = *voxels < most ? *voxels : most;
}

struct Voxels {
  const std::uint32_t* starts;
  const std::int64_t* count;
  const std::int32_t* kept;  ///< counts the voxels that are kept up to each voxel; null if all are
  std::int64_t max_points;
  KeyLayout layout;
  Columns columns;
  float* features;
  std::int32_t *coords, *counts;

  /// The row of a voxel in the outputs, or -1 if it isn't kept.
  __device__ std::int64_t row(std::int64_t voxel) const {
    if (!kept) return voxel;
    const std::int32_t before = voxel == 0 ? 0 : kept[voxel - 1];
    return kept[voxel] > before ? before : -1;
  }
};

/// A thread computes `lanes` columns of a voxel. It adds the points in their order, as the CPU does. A point has
/// `stride` groups of `lanes` columns, and its features begin at the first or, if it has a batch number, at the second.
template <Reduction reduction, int lanes>
__global__ void __launch_bounds__(kThreads)
    write_voxels(Sorted sorted, const float* points, std::int64_t stride, Voxels voxels) {
  using Vector = elementwise::Lanes<float, lanes>;
  const std::int64_t first = voxels.columns.batched ? 1 : 0, columns = stride - first;
  const std::int64_t voxel = thread_index() / columns, column = thread_index() % columns;
  if (voxel >= *voxels.count) return;
  const std::int64_t row = voxels.row(voxel);
  if (row < 0) return;
  const std::int64_t begin = voxels.starts[voxel];
  std::int64_t count = voxels.starts[voxel + 1] - begin;
  if (count > voxels.max_points) count = voxels.max_points;
  const auto features_of = [&](std::int64_t i) {
    return reinterpret_cast<const Vector*>(points)[sorted.points[i] * stride + first + column];
  };
  Vector result;
  if constexpr (reduction == Reduction::max) {
    result = features_of(begin);
    for (std::int64_t i = begin + 1; i < begin + count; ++i) {
      const Vector point = features_of(i);
#pragma unroll
      for (int lane = 0; lane < lanes; ++lane) result.values[lane] = greater(result.values[lane], point.values[lane]);
    }
  } else {
    double sums[lanes] = {};
    for (std::int64_t i = begin; i < begin + count; ++i) {
      const Vector point = features_of(i);
#pragma unroll
      for (int lane = 0; lane < lanes; ++lane) sums[lane] += point.values[lane];
    }
    const double divisor = reduction == Reduction::mean ? static_cast<double>(count) : 1.0;
#pragma unroll
    for (int i = 0; i < lanes; ++i) result.values[i] = static_cast<float>(sums[i] / divisor);
  }
  reinterpret_cast<Vector*>(voxels.features)[row * columns + column] = result;
  if (column > 0) return;
  const int numbers = voxels.columns.count();
  for (int i = 0; i < numbers; ++i) {
    voxels.coords[numbers * row + i] = voxels.layout.number(sorted.keys[begin], voxels.columns.axis(i));
  }
  voxels.counts[row] = static_cast<std::int32_t>(count);
}

/// Only the device knows how many voxels there are, so there are threads for the greatest possible number.
template <int lanes>
void launch_write_voxels(cudaStream_t stream, Reduction reduction, const Sorted& sorted, const float* points,
                         std::int64_t c, const Voxels& voxels) {
  const std::int64_t stride = c / lanes, columns = stride - (voxels.columns.batched ? 1 : 0);
  const unsigned blocks = blocks_for(sorted.n * columns, kThreads);
  switch (reduction) {
    case Reduction::mean:
      write_voxels<Reduction::mean, lanes><<<blocks, kThreads, 0, stream>>>(sorted, points, stride, voxels);
      break;
    case Reduction::sum:
      write_voxels<Reduction::sum, lanes><<<blocks, kThreads, 0, stream>>>(sorted, points, stride, voxels);
      break;
    case Reduction::max:
      write_voxels<Reduction::max, lanes><<<blocks, kThreads, 0, stream>>>(sorted, points, stride, voxels);
      break;
  }
}

/// Replaces counts by their running sums, with CUB. If `storage` is null, sets `bytes` to the memory that CUB needs.
cudaError_t sum_up(void* storage, std::size_t& bytes, std::int32_t* counts, std::int64_t n, cudaStream_t stream) {
  return cub::DeviceScan::InclusiveSum(storage, bytes, counts, counts, n, stream);
}

/// The bytes of storage that sum_up needs.
std::int64_t storage_bytes(std::int64_t n) {
  std::size_t bytes = 0;
  if (sum_up(nullptr, bytes, nullptr, n, nullptr) != cudaSuccess)
    throw std::runtime_error("CUB does not say how much memory it wants");
  return static_cast<std::int64_t>(std::max<std::size_t>(bytes, 1));
}

struct Cuda : Checked {
  struct Memory {
    SortedKeysOf<std::uint32_t, std::uint64_t> points;
    std::span<std::int32_t> begun;
    std::span<std::uint32_t> starts;
    std::span<char> storage;
    // With a limit of voxels only:
    std::span<std::int32_t> first, kept;
    std::span<std::int64_t> voxels;
  };

  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes& attributes) {
    const std::int64_t n = in.size("n"), limited = attributes.integer("max_voxels") > 0 ? 1 : 0;
    return {decltype(Memory::points)::take(workspace, n), workspace.take<std::int32_t>(n),
            workspace.take<std::uint32_t>(n + 1),         workspace.take<char>(storage_bytes(n)),
            workspace.take<std::int32_t>(limited * n),    workspace.take<std::int32_t>(limited * n),
            workspace.take<std::int64_t>(limited)};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n"), c = in.size("c");
    std::int64_t* const v = out.device_size("v");
    const cudaStream_t stream = stream_of(context);
    if (n == 0) return cuda::status(cudaMemsetAsync(v, 0, sizeof *v, stream), "writing a size");
    const Settings settings(attributes);
    const auto* const points = in["points"].data<float>();
    const float* const range = in.has("range") ? in["range"].data<float>() : nullptr;
    const Memory memory = workspace(context.workspace(), in, attributes);
    const unsigned blocks = blocks_for(n, kThreads);
    const auto sum = [&](std::span<std::int32_t> marks) {
      std::size_t bytes = memory.storage.size();
      return cuda::status(sum_up(memory.storage.data(), bytes, marks.data(), n, stream), "summing up");
    };

    find_keys<<<blocks, kThreads, 0, stream>>>(n, c, settings.columns.batched, points, in["size"].data<float>(), range,
                                               memory.points.keys.data(), memory.points.values.data());
    OPGATE_RETURN_IF_ERROR(launched());
    OPGATE_RETURN_IF_ERROR(memory.points.sort(context));
    const Sorted sorted{n, memory.points.sorted_keys.data(), memory.points.sorted_values.data()};
    mark_beginnings<<<blocks, kThreads, 0, stream>>>(sorted, memory.begun.data());
    OPGATE_RETURN_IF_ERROR(launched());
    OPGATE_RETURN_IF_ERROR(sum(memory.begun));
    std::int64_t* const count = settings.limits_voxels() ? memory.voxels.data() : v;
    find_starts<<<blocks, kThreads, 0, stream>>>(sorted, memory.begun.data(), memory.starts.data(), count);
    OPGATE_RETURN_IF_ERROR(launched());
    if (settings.limits_voxels()) {
      mark_first_points<<<blocks, kThreads, 0, stream>>>(sorted, memory.first.data());
      OPGATE_RETURN_IF_ERROR(launched());
      OPGATE_RETURN_IF_ERROR(sum(memory.first));
      mark_kept<<<blocks, kThreads, 0, stream>>>(sorted, memory.starts.data(), count, memory.first.data(),
                                                 settings.max_voxels, memory.kept.data(), v);
      OPGATE_RETURN_IF_ERROR(launched());
      OPGATE_RETURN_IF_ERROR(sum(memory.kept));
    }

    const Voxels voxels{memory.starts.data(),
                        count,
                        settings.limits_voxels() ? memory.kept.data() : nullptr,
                        settings.max_points,
                        KeyLayout(settings.columns.batched),
                        settings.columns,
                        out["features"].data<float>(),
                        out["coords"].data<std::int32_t>(),
                        out["counts"].data<std::int32_t>()};
    const bool aligned = elementwise::aligned(points) && elementwise::aligned(voxels.features);
    if (!settings.columns.batched && c % 4 == 0 && aligned) {
      launch_write_voxels<4>(stream, settings.reduction, sorted, points, c, voxels);
    } else {
      launch_write_voxels<1>(stream, settings.reduction, sorted, points, c, voxels);
    }
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::voxelize

OPGATE_CUDA_KERNEL(Voxelize, opgate::ops::voxelize::Cuda)

#include "voxel_of_point.h"

#include "kernel_toolkit/sorted.cuh"

namespace opgate::ops::voxel_of_point {
namespace {

constexpr int kThreads = 256;

__device__ std::int64_t thread_index() { return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

__global__ void __launch_bounds__(kThreads)
    find_keys(std::int64_t v, voxelize::Columns columns, const std::int32_t* coords, std::uint64_t* keys,
              std::int32_t* rows) {
  const std::int64_t row = thread_index();
  if (row >= v) return;
  keys[row] = key_of(voxelize::KeyLayout(columns.batched), columns, coords + row * columns.count());
  rows[row] = static_cast<std::int32_t>(row);
}

/// `keys` are sorted, and `rows` are theirs. Of equal keys the lowest row comes first. `range` may be null.
__global__ void __launch_bounds__(kThreads)
    find_voxels(std::int64_t n, std::int64_t c, std::int64_t v, bool batched, const float* points, const float* size,
                const float* range, const std::uint64_t* keys, const std::int32_t* rows, std::int32_t* voxel) {
  const std::int64_t i = thread_index();
  if (i >= n) return;
  const std::uint64_t key = voxelize::VoxelGrid(size, range, batched).key(points + i * c);
  const std::int64_t place = first_of(keys, v, key);
  voxel[i] = key != voxelize::kNoVoxel && place < v && keys[place] == key ? rows[place] : -1;
}

struct Cuda : Checked {
  using Memory = SortedKeysOf<std::int32_t, std::uint64_t>;

  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    return Memory::take(workspace, in.size("v"));
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n"), c = in.size("c"), v = in.size("v");
    if (n == 0) return {};
    const Memory sorting = workspace(context.workspace(), in, attributes);
    const voxelize::Columns columns = voxelize::columns_of(attributes);
    const float* const range = in.has("range") ? in["range"].data<float>() : nullptr;
    if (v > 0) {
      find_keys<<<blocks_for(v, kThreads), kThreads, 0, stream_of(context)>>>(
          v, columns, in["coords"].data<std::int32_t>(), sorting.keys.data(), sorting.values.data());
      OPGATE_RETURN_IF_ERROR(launched());
    }
    OPGATE_RETURN_IF_ERROR(sorting.sort(context));
    find_voxels<<<blocks_for(n, kThreads), kThreads, 0, stream_of(context)>>>(
        n, c, v, columns.batched, in["points"].data<float>(), in["size"].data<float>(), range,
        sorting.sorted_keys.data(), sorting.sorted_values.data(), out["voxel"].data<std::int32_t>());
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::voxel_of_point

OPGATE_CUDA_KERNEL(VoxelOfPoint, opgate::ops::voxel_of_point::Cuda)

#include "bev_pool_v2.h"

#include "rows.cuh"

namespace opgate::ops::bev_pool_v2 {
namespace {

struct Cuda : Checked {
  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    return Memory::take(workspace, in.size("p"));
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    OPGATE_RETURN_IF_ERROR(check_intervals(in));
    const Points points = Points::of(in, cells(in, attributes));
    const std::int64_t c = in.size("c");
    if (points.cells == 0 || c == 0) return {};
    const Memory memory = workspace(context.workspace(), in, attributes);
    const cudaStream_t stream = stream_of(context);
    if (points.count > 0) {
      OPGATE_RETURN_IF_ERROR(launch_cells(context, in, points, memory.cells.data()));
      find_keys<<<blocks_for(points.count, kThreads), kThreads, 0, stream>>>(
          points, memory.cells.data(), nullptr, points.cells, memory.sorted.keys.data(), memory.sorted.values.data());
      OPGATE_RETURN_IF_ERROR(launched());
      OPGATE_RETURN_IF_ERROR(memory.sorted.sort(context, points.cells));
    }
    add_rows<T><<<blocks_for(points.cells * ((c + kWarp - 1) / kWarp) * kWarp, kThreads), kThreads, 0, stream>>>(
        points, points.cells, c, memory.sorted.sorted_keys.data(), memory.sorted.sorted_values.data(),
        in["depth"].data<T>(), in["feat"].data<T>(), nullptr, out["bev"].data<T>());
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::bev_pool_v2

OPGATE_CUDA_KERNEL(BevPoolV2, opgate::ops::bev_pool_v2::Cuda)

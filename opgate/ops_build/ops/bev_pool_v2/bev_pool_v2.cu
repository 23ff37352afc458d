#include "bev_pool_v2.h"

#include "intervals.cuh"

namespace opgate::ops::bev_pool_v2 {
namespace {

struct Cuda : Checked {
  /// Of intervals the lists, of points without intervals what sorts them.
  struct Taken {
    Intervals intervals;
    Memory memory;
  };

  static Taken workspace(Workspace& workspace, const Inputs& in, const Attributes& attributes) {
    if (!in.has("interval_starts")) return {{}, Memory::take(workspace, in.size("p"))};
    return {Intervals::take(workspace, in.size("i"), cells(in, attributes)), {}};
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    OPGATE_RETURN_IF_ERROR(check_intervals(in));
    const Points points = Points::of(in, cells(in, attributes));
    const std::int64_t c = in.size("c");
    if (points.cells == 0 || c == 0) return {};
    auto [intervals, memory] = workspace(context.workspace(), in, attributes);
    const T *const depth = in["depth"].data<T>(), *const feat = in["feat"].data<T>();
    if (in.has("interval_starts")) {
      intervals.starts = in["interval_starts"].data<std::int32_t>();
      intervals.lengths = in["interval_lengths"].data<std::int32_t>();
      return add_all_intervals(context, points, intervals, c, depth, feat, out["bev"].data<T>());
    }
    const cudaStream_t stream = stream_of(context);
    if (points.count > 0) {
      OPGATE_RETURN_IF_ERROR(launch_cells(context, in, points, memory.cells.data()));
      find_keys<<<blocks_for(points.count, kThreads), kThreads, 0, stream>>>(
          points, memory.cells.data(), nullptr, points.cells, memory.sorted.keys.data(), memory.sorted.values.data());
      OPGATE_RETURN_IF_ERROR(launched());
      OPGATE_RETURN_IF_ERROR(memory.sorted.sort(context, points.cells));
    }
    add_rows<T><<<blocks_for(points.cells * ((c + kWarp - 1) / kWarp) * kWarp, kThreads), kThreads, 0, stream>>>(
        points, points.cells, c, memory.sorted.sorted_keys.data(), memory.sorted.sorted_values.data(), depth, feat,
        nullptr, out["bev"].data<T>());
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::bev_pool_v2

OPGATE_CUDA_KERNEL(BevPoolV2, opgate::ops::bev_pool_v2::Cuda)

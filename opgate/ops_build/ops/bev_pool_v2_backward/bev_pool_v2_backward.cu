#include "bev_pool_v2_backward.h"

#include "ops/bev_pool_v2/rows.cuh"

namespace opgate::ops::bev_pool_v2_backward {
namespace {

using bev_pool_v2::kThreads;
using bev_pool_v2::kWarp;
using bev_pool_v2::Memory;
using bev_pool_v2::thread_index;

/// A warp computes the gradient of a depth.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_products(Points points, std::int64_t c, const std::uint32_t* keys, const std::uint32_t* sorted,
                 const std::uint32_t* cells, const T* feat, const T* grad_bev, T* grad_depth) {
  using C = ComputeType<T>;
  const std::int64_t depth = thread_index() / kWarp;
  if (depth >= points.depths) return;  // all threads of a warp
  C total = bev_pool_v2::sum_of<C>(KeyRange::of(keys, points.count, depth), sorted, [&](std::int64_t i) {
    const T *const features = feat + points.feat[i] * c, *const upstream = grad_bev + cells[i] * c;
    C product = 0;
    for (std::int64_t k = threadIdx.x % kWarp; k < c; k += kWarp) {
      product += static_cast<C>(features[k]) * static_cast<C>(upstream[k]);
    }
    return product;
  });
  for (int bits = kWarp / 2; bits > 0; bits /= 2) total += __shfl_xor_sync(0xffffffffu, total, bits);
  if (threadIdx.x % kWarp == 0) grad_depth[depth] = static_cast<T>(total);
}

struct Cuda : Checked {
  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    return Memory::take(workspace, in.size("p"));
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    OPGATE_RETURN_IF_ERROR(bev_pool_v2::check_intervals(in));
    const Points points = Points::of(in, cells(in));
    const std::int64_t c = in.size("c");
    const Memory memory = workspace(context.workspace(), in, attributes);
    const std::uint32_t *const keys = memory.sorted.sorted_keys.data(), *const sorted =
                                                                            memory.sorted.sorted_values.data();
    const T *const grad = in["grad_bev"].data<T>(), *const feat = in["feat"].data<T>();
    const cudaStream_t stream = stream_of(context);
    OPGATE_RETURN_IF_ERROR(bev_pool_v2::launch_cells(context, in, points, memory.cells.data()));
    if (points.feats > 0 && c > 0) {
      OPGATE_RETURN_IF_ERROR(sort(context, points, memory, points.feat, points.feats));
      const unsigned blocks = blocks_for(points.feats * ((c + kWarp - 1) / kWarp) * kWarp, kThreads);
      bev_pool_v2::add_rows<T><<<blocks, kThreads, 0, stream>>>(points, points.feats, c, keys, sorted,
                                                                in["depth"].data<T>(), grad, memory.cells.data(),
                                                                out["grad_feat"].data<T>());
      OPGATE_RETURN_IF_ERROR(launched());
    }
    if (points.depths == 0) return {};
    OPGATE_RETURN_IF_ERROR(sort(context, points, memory, points.depth, points.depths));
    add_products<T><<<blocks_for(points.depths * kWarp, kThreads), kThreads, 0, stream>>>(
        points, c, keys, sorted, memory.cells.data(), feat, grad, out["grad_depth"].data<T>());
    return launched();
  }

 private:
  /// Sorts the points by a rank.
  static Status sort(Context& context, const Points& points, const Memory& memory, const std::int32_t* ranks,
                     std::int64_t end) {
    if (points.count == 0) return {};
    bev_pool_v2::find_keys<<<blocks_for(points.count, kThreads), kThreads, 0, stream_of(context)>>>(
        points, memory.cells.data(), ranks, end, memory.sorted.keys.data(), memory.sorted.values.data());
    OPGATE_RETURN_IF_ERROR(launched());
    return memory.sorted.sort(context, end);
  }
};

}  // namespace
}  // namespace opgate::ops::bev_pool_v2_backward

OPGATE_CUDA_KERNEL(BevPoolV2Backward, opgate::ops::bev_pool_v2_backward::Cuda)

#include "scatter_reduce.h"

#include "reductions/rows.cuh"
#include "reductions/sorted.cuh"

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

struct Cuda : Checked {
  static SortedKeys workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    return SortedKeys::take(workspace, in.size("n"));
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n"), size = in.size("dim_size"), columns = columns_of(in["x"]);
    if (size == 0 || columns == 0) return {};
    const SortedKeys sorting = workspace(context.workspace(), in, attributes);
    const cudaStream_t stream = stream_of(context);
    if (n > 0) {
      find_keys<<<blocks_for(n, kThreads), kThreads, 0, stream>>>(n, size, in["index"].data<std::int64_t>(),
                                                                  sorting.keys.data(), sorting.values.data());
      OPGATE_RETURN_IF_ERROR(launched());
      OPGATE_RETURN_IF_ERROR(sorting.sort(context, size));
    }
    return segment_reduce::with_reduction(attributes, [&]<typename Op>(bool mean) {
      return segment_reduce::launch<Op>(context, size, columns, in["x"].data<T>(), Sorted::of(sorting), mean,
                                        out["y"].data<T>());
    });
  }
};

}  // namespace
}  // namespace opgate::ops::scatter_reduce

OPGATE_CUDA_KERNEL(ScatterReduce, opgate::ops::scatter_reduce::Cuda)

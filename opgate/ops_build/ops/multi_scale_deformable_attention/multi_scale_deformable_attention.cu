#include "multi_scale_deformable_attention.h"

#include "levels.cuh"

namespace opgate::ops::multi_scale_deformable_attention {
namespace {

/// A thread computes a number of the output.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    attend(Sizes sizes, const Level* levels, const T* values, const T* locations, const T* attention, T* output) {
  using C = ComputeType<T>;
  const std::int64_t row = sizes.heads * sizes.dims, i = thread_index();
  if (i >= sizes.b * sizes.queries * row) return;
  const std::int64_t query = i / row, head = i % row / sizes.dims;
  const T* const of_head = values + query / sizes.queries * sizes.keys * row + i % row;
  std::int64_t number = (query * sizes.heads + head) * sizes.levels * sizes.points;
  C sum = 0;
  for (std::int64_t l = 0; l < sizes.levels; ++l) {
    const Level level = levels[l];
    C of_level = 0;
    for (std::int64_t p = 0; p < sizes.points; ++p, ++number) {
      const C weight = static_cast<C>(attention[number]);
      each_key(sample_at(locations, number, level), level, [&](std::int64_t key, C near_x, C near_y, bool, bool) {
        of_level += weight * near_y * near_x * static_cast<C>(of_head[key * row]);
      });
    }
    sum += of_level;
  }
  output[i] = static_cast<T>(sum);
}

struct Cuda : Checked {
  static std::span<Level> workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    return workspace.take<Level>(in.size("levels"));
  }

  template <typename T, typename I>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Sizes sizes = Sizes::of(in);
    const std::int64_t count = sizes.b * sizes.queries * sizes.heads * sizes.dims;
    if (count == 0) return {};
    const std::span<Level> levels = workspace(context.workspace(), in, attributes);
    OPGATE_RETURN_IF_ERROR(launch_levels<I>(context, in, sizes, levels.data()));
    attend<T><<<blocks_for(count, kThreads), kThreads, 0, stream_of(context)>>>(
        sizes, levels.data(), in["value"].data<T>(), in["sampling_locations"].data<T>(),
        in["attention_weights"].data<T>(), out["output"].data<T>());
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::multi_scale_deformable_attention

OPGATE_CUDA_KERNEL(MultiScaleDeformableAttention, opgate::ops::multi_scale_deformable_attention::Cuda)

#include "multi_scale_deformable_attention.h"

#include "kernel_toolkit/divisor.h"
#include "levels.cuh"

namespace opgate::ops::multi_scale_deformable_attention {
namespace {

/// A thread computes `lanes` numbers of the output, which have one head: what it knows of a sample serves all of them.
template <int lanes, typename T, typename Index>
__global__ void __launch_bounds__(kThreads)
    attend(Sizes sizes, std::int64_t count, Divisor<Index> vectors_of_row, Divisor<Index> vectors_of_head,
           Divisor<Index> queries, const Level* __restrict__ levels, const T* __restrict__ values,
           const T* __restrict__ locations, const T* __restrict__ attention, T* __restrict__ output) {
  using C = ComputeType<T>;
  using Vector = elementwise::Lanes<T, lanes>;
  const std::int64_t thread = thread_index();
  if (thread >= count) return;
  const Index query = static_cast<Index>(thread) / vectors_of_row;
  const Index at = static_cast<Index>(thread) - query * vectors_of_row.number(), head = at / vectors_of_head;
  const std::int64_t row = vectors_of_row.number();
  const Vector* const of_head = reinterpret_cast<const Vector*>(values) + (query / queries) * sizes.keys * row + at;
  std::int64_t number = (query * sizes.heads + head) * sizes.levels * sizes.points;
  C sums[lanes] = {};
  for (std::int64_t l = 0; l < sizes.levels; ++l) {
    const Level level = levels[l];
    C of_level[lanes] = {};
    for (std::int64_t p = 0; p < sizes.points; ++p, ++number) {
      const C weight = static_cast<C>(attention[number]);
      each_key(sample_at(locations, number, level), level, [&](std::int64_t key, C near_x, C near_y, bool, bool) {
        const C factor = weight * near_y * near_x;
        const Vector from = of_head[key * row];
#pragma unroll
        for (int lane = 0; lane < lanes; ++lane) of_level[lane] += factor * static_cast<C>(from.values[lane]);
      });
    }
#pragma unroll
    for (int lane = 0; lane < lanes; ++lane) sums[lane] += of_level[lane];
  }
  Vector result;
#pragma unroll
  for (int lane = 0; lane < lanes; ++lane) result.values[lane] = static_cast<T>(sums[lane]);
  reinterpret_cast<Vector*>(output)[thread] = result;
}

/// Fewer threads than this don't fill a GPU, so that each computes one number.
constexpr std::int64_t kEnoughThreads = 1 << 15;

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
    constexpr int lanes = elementwise::kBytes / sizeof(T);
    using elementwise::aligned;
    if (sizes.dims % lanes == 0 && count / lanes >= kEnoughThreads && aligned(in["value"].data<T>()) &&
        aligned(out["output"].data<T>())) {
      launch<lanes, T>(context, in, sizes, levels.data(), out);
    } else {
      launch<1, T>(context, in, sizes, levels.data(), out);
    }
    return launched();
  }

 private:
  template <int lanes, typename T>
  static void launch(Context& context, const Inputs& in, const Sizes& sizes, const Level* levels, Outputs& out) {
    const std::int64_t vectors = sizes.dims / lanes, count = sizes.b * sizes.queries * sizes.heads * vectors;
    with_index(count, [&]<typename Index>(Index) {
      attend<lanes><<<blocks_for(count, kThreads), kThreads, 0, stream_of(context)>>>(
          sizes, count, Divisor<Index>(sizes.heads * vectors), Divisor<Index>(vectors), Divisor<Index>(sizes.queries),
          levels, in["value"].data<T>(), in["sampling_locations"].data<T>(), in["attention_weights"].data<T>(),
          out["output"].data<T>());
    });
  }
};

}  // namespace
}  // namespace opgate::ops::multi_scale_deformable_attention

OPGATE_CUDA_KERNEL(MultiScaleDeformableAttention, opgate::ops::multi_scale_deformable_attention::Cuda)

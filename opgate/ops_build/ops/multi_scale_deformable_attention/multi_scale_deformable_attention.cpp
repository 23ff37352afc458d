#include "multi_scale_deformable_attention.h"

#include "cpu.h"

namespace opgate::ops::multi_scale_deformable_attention {
namespace {

/// Adds up `vectors` vectors of the values. `stride` numbers lie between the values of two keys.
template <int vectors, typename C>
[[gnu::always_inline]] inline void add_values(const Corners<C>& corners, const C* values, std::int64_t stride, C* to) {
  using V = rows::Vectors<C>;
  typename V::Vector sums[4][vectors] = {};  // one for each corner: they don't wait for one another
  for (std::int64_t i = 0; i < corners.count(); ++i) {
#pragma GCC unroll 4
    for (int corner = 0; corner < 4; ++corner) {
      const std::int64_t key = corners.key(i, corner);
      if (key < 0) continue;
      const C weight = corners.weight(i, corner);
      const C* const from = values + key * stride;
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sums[corner][v] += weight * V::load(from + v * V::kWidth);
    }
  }
  for (int v = 0; v < vectors; ++v) V::store((sums[0][v] + sums[1][v]) + (sums[2][v] + sums[3][v]), to + v * V::kWidth);
}

/// The same for `count` numbers, fewer than a vector has.
template <typename C>
void add_few_values(const Corners<C>& corners, const C* values, std::int64_t stride, std::int64_t count, C* to) {
  std::fill_n(to, count, C(0));
  for (std::int64_t i = 0; i < corners.count(); ++i) {
    for (int corner = 0; corner < 4; ++corner) {
      const std::int64_t key = corners.key(i, corner);
      if (key < 0) continue;
      const C weight = corners.weight(i, corner);
      const C* const __restrict__ from = values + key * stride;
      for (std::int64_t d = 0; d < count; ++d) to[d] += weight * from[d];
    }
  }
}

template <typename C>
void add_head(const Corners<C>& corners, const C* values, std::int64_t stride, std::int64_t dims, C* to) {
  constexpr std::int64_t kWidth = rows::Vectors<C>::kWidth;
  std::int64_t d = 0;
  for (; d + 4 * kWidth <= dims; d += 4 * kWidth) add_values<4>(corners, values + d, stride, to + d);
  for (; d + 2 * kWidth <= dims; d += 2 * kWidth) add_values<2>(corners, values + d, stride, to + d);
  for (; d + kWidth <= dims; d += kWidth) add_values<1>(corners, values + d, stride, to + d);
  if (d < dims) add_few_values(corners, values + d, stride, dims - d, to + d);
}

struct Cpu : Checked {
  template <typename T, typename I>
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const Sizes sizes = Sizes::of(in);
    std::vector<Level> levels;
    OPGATE_RETURN_IF_ERROR(levels_of<I>(in, sizes, levels));
    attend(context, sizes, levels, rows::wide<T>(context, in["value"]), in["sampling_locations"].data<T>(),
           in["attention_weights"].data<T>(), out["output"].data<T>());
    return {};
  }

 private:
  template <typename T, typename C = ComputeType<T>>
  static void attend(Context& context, const Sizes& sizes, const std::vector<Level>& levels, const C* values,
                     const T* locations, const T* attention, T* output) {
    const std::int64_t row = sizes.heads * sizes.dims, samples = sizes.levels * sizes.points;
    const std::int64_t work = std::max<std::int64_t>(1, sizes.heads * (sizes.dims + 16) * (1 + 4 * samples));
    // Keys that are used often are in the cache.
    const bool rare = 4 * sizes.queries * samples < 8 * sizes.keys;
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      Corners<C> corners[2] = {{sizes, levels}, {sizes, levels}};
      rows::Buffer<T> wide_locations(sizes.heads * samples * 2), wide_attention(sizes.heads * samples), sum(row);
      for (std::int64_t query = begin; query < end; ++query) {
        const std::int64_t first = query * sizes.heads * samples;
        const C* const where = wide_locations.read(locations + 2 * first, sizes.heads * samples * 2);
        const C* const weights = wide_attention.read(attention + first, sizes.heads * samples);
        const C* const of_batch = values + query / sizes.queries * sizes.keys * row;
        C* const to = sum.target(output + query * row);
        // The values of a head come from memory while those of the head before are added.
        for (std::int64_t head = 0; head <= sizes.heads; ++head) {
          if (head < sizes.heads) {
            Corners<C>& next = corners[head % 2];
            next.find(where + 2 * head * samples);
            next.weigh(weights + head * samples);
            if (rare) next.prefetch(of_batch + head * sizes.dims, row, sizes.dims);
          }
          if (head == 0) continue;
          const std::int64_t at = (head - 1) * sizes.dims;
          add_head(corners[(head - 1) % 2], of_batch + at, row, sizes.dims, to + at);
        }
        sum.store(output + query * row, row);
      }
    };
    if (row > 0)
      context.parallel_for(sizes.b * sizes.queries, std::max<std::int64_t>(1, 16 * kElementGrain / work), run);
  }
};

}  // namespace
}  // namespace opgate::ops::multi_scale_deformable_attention

OPGATE_CPU_KERNEL(MultiScaleDeformableAttention, opgate::ops::multi_scale_deformable_attention::Cpu)

#include "multi_scale_deformable_attention_backward.h"

#include "ops/multi_scale_deformable_attention/cpu.h"

namespace opgate::ops::multi_scale_deformable_attention_backward {

using namespace multi_scale_deformable_attention;

namespace {

/// The gradients of a sample, before its width and height count.
template <typename C>
struct Slopes {
  C attention, x, y;
};

/// Adds what sample i gives to the gradients of its values, and returns its own. The weight
/// of the sample is `attention`.
template <typename C>
[[gnu::always_inline]] inline Slopes<C> of_sample(const Corners<C>& corners, std::int64_t i, C attention, const C* grad,
                                                  const C* values, std::int64_t stride, std::int64_t dims,
                                                  C* grad_values) {
  using V = rows::Vectors<C>;
  const C right = corners.right()[i], below = corners.below()[i];
  typename V::Vector sums[3] = {};
  C few[3] = {};
#pragma GCC unroll 4
  for (int corner = 0; corner < 4; ++corner) {
    const std::int64_t key = corners.key(i, corner);
    if (key < 0) continue;
    const C near_x = corner % 2 ? right : C(1) - right, near_y = corner / 2 ? below : C(1) - below;
    const C weights[3] = {near_x * near_y, corner % 2 ? near_y : -near_y, corner / 2 ? near_x : -near_x};
    const C weight = corners.weight(i, corner);
    const C* const from = values + key * stride;
    C* const to = grad_values + key * stride;
    typename V::Vector product{};
    std::int64_t d = 0;
    for (; d + V::kWidth <= dims; d += V::kWidth) {
      const typename V::Vector upstream = V::load(grad + d);
      product += upstream * V::load(from + d);
      V::store(V::load(to + d) + weight * upstream, to + d);
    }
    C rest = 0;
    for (; d < dims; ++d) {
      rest += grad[d] * from[d];
      to[d] += weight * grad[d];
    }
    for (int k = 0; k < 3; ++k) {
      sums[k] += weights[k] * product;
      few[k] += weights[k] * rest;
    }
  }
  return {V::sum(sums[0]) + few[0], (V::sum(sums[1]) + few[1]) * attention, (V::sum(sums[2]) + few[2]) * attention};
}

struct CpuBackward : Checked {
  template <typename T, typename I>
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const Sizes sizes = Sizes::of(in);
    std::vector<Level> levels;
    OPGATE_RETURN_IF_ERROR(levels_of<I>(in, sizes, levels));
    return run<T>(context, in, sizes, levels, out);
  }

 private:
  template <typename T>
  static Status run(Context& context, const Inputs& in, const Sizes& sizes, const std::vector<Level>& levels,
                    Outputs& out) {
    using C = ComputeType<T>;
    constexpr bool kCopies = !std::is_same_v<C, T>;
    const std::int64_t row = sizes.heads * sizes.dims, samples = sizes.levels * sizes.points;
    const std::int64_t size = sizes.b * sizes.keys * row, grain = kElementGrain;
    const C *const grads = rows::wide<T>(context, in["grad_output"]),
                   *const values = rows::wide<T>(context, in["value"]),
                   *const locations = rows::wide<T>(context, in["sampling_locations"]),
                   *const attention = rows::wide<T>(context, in["attention_weights"]);
    T* const grad_values = out["grad_value"].data<T>();
    C* sums = nullptr;
    if constexpr (kCopies) {
      sums = context.scratch<C>(size).data();
    } else {
      sums = grad_values;
    }
    context.parallel_for(size, grain,
                         [&](std::int64_t begin, std::int64_t end) { std::fill(sums + begin, sums + end, C(0)); });
    T *const grad_locations = out["grad_sampling_locations"].data<T>(), *const grad_attention =
                                                                            out["grad_attention_weights"].data<T>();
    // Without samples nothing flows back, however many heads there are.
    const std::int64_t heads = sizes.queries * samples == 0 ? 0 : sizes.b * sizes.heads;
    // A head of a batch has values of its own, so that no two threads add to one.
    context.parallel_for(heads, 1, [&](std::int64_t begin, std::int64_t end) {
      Corners<C> corners(sizes, levels);
      std::vector<C> to_locations(static_cast<std::size_t>(2 * samples)),
          to_attention(static_cast<std::size_t>(samples));
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t b = i / sizes.heads, head = i % sizes.heads;
        const std::int64_t of_batch = b * sizes.keys * row + head * sizes.dims;
        for (std::int64_t query = b * sizes.queries; query < (b + 1) * sizes.queries; ++query) {
          const std::int64_t first = (query * sizes.heads + head) * samples;
          corners.find(locations + 2 * first);
          corners.weigh(attention + first);
          for (std::int64_t s = 0; s < samples; ++s) {
            const Slopes<C> slopes =
                of_sample(corners, s, attention[first + s], grads + query * row + head * sizes.dims, values + of_batch,
                          row, sizes.dims, sums + of_batch);
            const std::size_t at = static_cast<std::size_t>(s);
            to_attention[at] = slopes.attention;
            to_locations[2 * at] = slopes.x * corners.width()[s];
            to_locations[2 * at + 1] = slopes.y * corners.height()[s];
          }
          store(to_attention.data(), grad_attention + first, samples);
          store(to_locations.data(), grad_locations + 2 * first, 2 * samples);
        }
      }
    });
    if constexpr (kCopies) {
      context.parallel_for(size, grain, [&](std::int64_t begin, std::int64_t end) {
        store(sums + begin, grad_values + begin, end - begin);
      });
    }
    return {};
  }

  template <typename T, typename C>
  static void store(const C* from, T* to, std::int64_t count) {
    if constexpr (std::is_same_v<T, C>)
      std::copy_n(from, count, to);
    else
      narrow(from, to, count);
  }
};

}  // namespace
}  // namespace opgate::ops::multi_scale_deformable_attention_backward

OPGATE_CPU_KERNEL(MultiScaleDeformableAttentionBackward,
                  opgate::ops::multi_scale_deformable_attention_backward::CpuBackward)

#include "three_interpolate_backward.h"

#include <array>
#include <vector>

#include "kernel_toolkit/rows.h"
#include "ops/three_interpolate/weighted_rows.h"

namespace opgate::ops::three_interpolate_backward {
namespace {

struct Cpu : three_interpolate::Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    OPGATE_RETURN_IF_ERROR(three_interpolate::check_rows(in["idx"], in.size("n")));
    const Call<T> call{in.size("n"),           in.size("m"),
                       in.size("c"),           in.size("k"),
                       in["grad_y"].data<T>(), in["features"].data<T>(),
                       in["weight"].data<T>(), in["idx"].data<std::int32_t>()};
    grade_weights(context, call, out["grad_weight"].data<T>());
    grade_features(context, call, out["grad_features"].data<T>());
    return {};
  }

 private:
  template <typename T>
  struct Call {
    std::int64_t n, m, c, k;
    const T *grad_y, *features, *weight;
    const std::int32_t* idx;

    /// So many rows are about kElementGrain numbers, if each has `terms` neighbours.
    std::int64_t grain(std::int64_t terms) const {
      return std::max<std::int64_t>(1, kElementGrain / std::max<std::int64_t>(1, c * (terms + 1)));
    }
  };

  /// The gradient of a weight is the product of two rows.
  template <typename T>
  static void grade_weights(Context& context, const Call<T>& call, T* grad_weight) {
    using C = ComputeType<T>;
    if (call.k == 0) return;
    context.parallel_for(call.m, call.grain(call.k), [&](std::int64_t begin, std::int64_t end) {
      rows::Buffer<T> grads(call.c), features(call.c);
      const auto product = [](auto a, auto b) { return std::array<std::remove_const_t<decltype(a)>, 1>{a * b}; };
      for (std::int64_t query = begin; query < end; ++query) {
        const C* const grad = grads.read(call.grad_y + query * call.c, call.c);
        for (std::int64_t i = query * call.k; i < (query + 1) * call.k; ++i) {
          const C* const row = call.idx[i] < 0 ? nullptr : features.read(call.features + call.idx[i] * call.c, call.c);
          const double sum = row ? rows::sum<1>(call.c, product, grad, row)[0] : 0;
          grad_weight[i] = static_cast<T>(static_cast<C>(sum));
        }
      }
    });
  }

  /// The gradient of a row of features is a sum over the queries that it is a neighbour of, in their order.
  template <typename T>
  static void grade_features(Context& context, const Call<T>& call, T* grad_features) {
    const std::int64_t count = call.m * call.k;
    if (call.c == 0) return;
    // The places in idx that have row i are users[begins[i]], ..., users[begins[i + 1] - 1].
    const std::span<std::uint32_t> begins = context.scratch<std::uint32_t>(call.n + 2);
    const std::span<std::uint32_t> users = context.scratch<std::uint32_t>(count);
    std::fill(begins.begin(), begins.end(), 0u);
    for (std::int64_t i = 0; i < count; ++i) {
      if (call.idx[i] >= 0) ++begins[static_cast<std::size_t>(call.idx[i]) + 2];
    }
    for (std::size_t i = 2; i < begins.size(); ++i) begins[i] += begins[i - 1];
    for (std::int64_t i = 0; i < count; ++i) {
      if (call.idx[i] >= 0) users[begins[static_cast<std::size_t>(call.idx[i]) + 1]++] = static_cast<std::uint32_t>(i);
    }
    const std::int64_t terms = count / std::max<std::int64_t>(call.n, 1);
    const auto divisor = static_cast<std::uint32_t>(std::max<std::int64_t>(call.k, 1));
    context.parallel_for(call.n, call.grain(terms), [&](std::int64_t begin, std::int64_t end) {
      for (auto row = static_cast<std::size_t>(begin); row < static_cast<std::size_t>(end); ++row) {
        const std::uint32_t* const own = users.data() + begins[row];
        const auto term = [&](std::int64_t j) {
          return three_interpolate::Weighted<T>{call.grad_y + static_cast<std::int64_t>(own[j] / divisor) * call.c,
                                                static_cast<ComputeType<T>>(call.weight[own[j]])};
        };
        three_interpolate::sum_rows(std::int64_t{begins[row + 1]} - begins[row], call.c, term,
                                    grad_features + static_cast<std::int64_t>(row) * call.c);
      }
    });
  }
};

}  // namespace
}  // namespace opgate::ops::three_interpolate_backward

OPGATE_CPU_KERNEL(ThreeInterpolateBackward, opgate::ops::three_interpolate_backward::Cpu)

#include "bev_pool_v2_backward.h"

#include "ops/bev_pool_v2/rows.h"

namespace opgate::ops::bev_pool_v2_backward {
namespace {

struct Cpu : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    using C = ComputeType<T>;
    const Points points = Points::of(in, cells(in));
    const std::int64_t c = in.size("c");
    const std::int32_t* cell = nullptr;
    OPGATE_RETURN_IF_ERROR(bev_pool_v2::find_cells(context, in, points, cell));
    T* const grad_depth = out["grad_depth"].data<T>();
    if (c == 0) {  // there may be more rows of no features than memory has room for
      std::fill_n(grad_depth, points.depths, T{});
      return {};
    }
    const auto terms =
        bev_pool_v2::Terms::of(context, points.count, points.feats, points.feat, cell, points.depth, cell);
    const C *const depth = rows::wide<T>(context, in["depth"]), *const feat = rows::wide<T>(context, in["feat"]),
                   *const grad = rows::wide<T>(context, in["grad_bev"]);
    // A row of features meets the same gradients in both outputs, so they are in the cache.
    C* const products = context.scratch<C>(points.count).data();
    bev_pool_v2::add_all(context, terms, points.count, points.feats, depth, grad, c, out["grad_feat"].data<T>(),
                         [&](std::int64_t row) {
                           for (std::int64_t i = terms.begins[row]; i < terms.begins[row + 1]; ++i) {
                             products[i] = rows::product(grad + terms.rows[i] * c, feat + row * c, c);
                           }
                         });
    double* const sums = context.scratch<double>(points.depths).data();
    std::fill_n(sums, points.depths, 0.0);
    const std::int64_t used = points.feats > 0 ? terms.begins[points.feats] : 0;
    for (std::int64_t i = 0; i < used; ++i) sums[terms.weights[i]] += static_cast<double>(products[i]);
    for (std::int64_t i = 0; i < points.depths; ++i) grad_depth[i] = static_cast<T>(static_cast<C>(sums[i]));
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::bev_pool_v2_backward

OPGATE_CPU_KERNEL(BevPoolV2Backward, opgate::ops::bev_pool_v2_backward::Cpu)

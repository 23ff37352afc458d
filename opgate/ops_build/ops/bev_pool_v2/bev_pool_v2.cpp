#include "bev_pool_v2.h"

#include "rows.h"

namespace opgate::ops::bev_pool_v2 {
namespace {

struct Cpu : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Points points = Points::of(in, cells(in, attributes));
    const std::int64_t c = in.size("c");
    const std::int32_t* cell = nullptr;
    OPGATE_RETURN_IF_ERROR(find_cells(context, in, points, cell));
    if (points.cells == 0 || c == 0) return {};
    const Terms terms = Terms::of(context, points.count, points.cells, cell, cell, points.depth, points.feat);
    add_all(context, terms, points.count, points.cells, rows::wide<T>(context, in["depth"]),
            rows::wide<T>(context, in["feat"]), c, out["bev"].data<T>(), [](std::int64_t) {});
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::bev_pool_v2

OPGATE_CPU_KERNEL(BevPoolV2, opgate::ops::bev_pool_v2::Cpu)

// Tests expressions in sizes, an integer scalar in host memory and an integer attribute as sizes, and an input whose
// size must equal an expression.
#include "kernel_toolkit/op.h"

OPGATE_OP(Patches,
          "Patches(image: u8[h,w], row: u8[2*w], times: const i64[]; size: int=4) -> "
          "(grid: i32[ceildiv(h,size),ceildiv(w,size)], tiled: u8[times,max(h,w)-min(h,w)+h%size])",
          "Sum of each patch; an array of ones of a computed size.")

namespace opgate::ops {
struct PatchesCpu {
  Status operator()(Context&, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t h = in.size("h"), w = in.size("w"), size = attributes.integer("size");
    const MutableTensor& grid = out["grid"];
    std::ranges::fill(grid.span<std::int32_t>(), 0);
    for (std::int64_t y = 0; y < h; ++y) {
      for (std::int64_t x = 0; x < w; ++x) {
        grid.data<std::int32_t>()[y / size * grid.dim(1) + x / size] += in["image"].data<std::uint8_t>()[y * w + x];
      }
    }
    std::ranges::fill(out["tiled"].span<std::uint8_t>(), std::uint8_t{1});
    return {};
  }
};
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(Patches, opgate::ops::PatchesCpu)

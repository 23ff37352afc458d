#include "tiles.h"

namespace opgate::ops {
struct TilesCpu {
  Status operator()(Context&, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t h = in.size("h"), w = in.size("w"), size = attributes.integer("size");
    const MutableTensor& grid = out["grid"];
    std::ranges::fill(grid.span<float>(), 0.0f);
    for (std::int64_t y = 0; y < h; ++y) {
      for (std::int64_t x = 0; x < w; ++x) {
        grid.data<float>()[y / size * grid.dim(1) + x / size] += in["x"].data<float>()[y * w + x];
      }
    }
    std::ranges::fill(out["tiled"].span<float>(), 1.0f);
    return {};
  }
};
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(Tiles, opgate::ops::TilesCpu)

// One thread is enough: this tests how an adapter handles expressions and a scalar in host memory.
#include "kernel_toolkit/elementwise.cuh"
#include "tiles.h"

namespace opgate::ops {
namespace {

__global__ void sum_tiles(std::int64_t h, std::int64_t w, std::int64_t size, std::int64_t columns, std::int64_t cells,
                          std::int64_t ones, const float* values, float* grid, float* tiled) {
  for (std::int64_t i = 0; i < cells; ++i) grid[i] = 0;
  for (std::int64_t y = 0; y < h; ++y) {
    for (std::int64_t x = 0; x < w; ++x) grid[y / size * columns + x / size] += values[y * w + x];
  }
  for (std::int64_t i = 0; i < ones; ++i) tiled[i] = 1;
}

struct TilesCuda {
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const MutableTensor &grid = out["grid"], &tiled = out["tiled"];
    sum_tiles<<<1, 1, 0, stream_of(context)>>>(in.size("h"), in.size("w"), attributes.integer("size"), grid.dim(1),
                                               grid.size(), tiled.size(), in["x"].data<float>(), grid.data<float>(),
                                               tiled.data<float>());
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops

OPGATE_CUDA_KERNEL(Tiles, opgate::ops::TilesCuda)

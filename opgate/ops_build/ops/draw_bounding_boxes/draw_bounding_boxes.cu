#include "draw_bounding_boxes.h"

#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::draw_bounding_boxes {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kTileWidth = 32;
constexpr int kTileHeight = kThreads / kTileWidth;
constexpr unsigned kWholeWarp = 0xffffffffu;

__constant__ Tables tables = kTables;

__device__ bool covers(const Rectangle& r, std::int64_t x, std::int64_t y) {
  return x >= r.left && x < r.right && y >= r.top && y < r.bottom;
}

__device__ bool meets(const Rectangle& a, const Rectangle& b) {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}

__global__ void __launch_bounds__(kThreads) make_marks(Rows rows, Mark* marks) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < rows.k) marks[i] = mark_of(rows, i);
}

/// Whether a letter of the tag has ink at a pixel that the tag covers.
__device__ bool has_ink(const Mark& mark, const Rows& rows, std::int64_t x, std::int64_t y) {
  const std::int64_t scale = rows.scale();
  const std::int64_t across = (x - mark.tag.left) / scale - 2, row = (y - mark.tag.top) / scale - 1;
  if (across < 0 || row < 0 || row >= kGlyphHeight) return false;
  const std::int64_t i = across / (kGlyphWidth + 1), column = across % (kGlyphWidth + 1);
  if (column == kGlyphWidth || i >= mark.letters()) return false;
  return tables.glyph_row(mark.letter(rows, i), row) >> (kGlyphWidth - 1 - column) & 1u;
}

/// A block paints one tile after another, downwards, with one thread per pixel. The threads test as many marks at a
/// time as there are threads, to find those that meet the tile. Each thread then goes over these marks from the top one
/// down: the pixel shows the first tag that covers it, or else the first outline.
__global__ void __launch_bounds__(kThreads) paint(const Mark* marks, Rows rows, std::uint8_t* drawn) {
  __shared__ unsigned meeting[kThreads / kWarp];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t left = static_cast<std::int64_t>(blockIdx.x) * kTileWidth, x = left + thread % kTileWidth;
  const std::int64_t thickness = rows.thickness;
  for (std::int64_t top = static_cast<std::int64_t>(blockIdx.y) * kTileHeight; top < rows.picture.height;
       top += static_cast<std::int64_t>(gridDim.y) * kTileHeight) {
    const std::int64_t y = top + thread / kTileWidth;
    const Rectangle tile{left, top, left + kTileWidth, top + kTileHeight};
    std::int64_t tagged = -1, outlined = -1;  // the top marks that cover the pixel
    for (std::int64_t first = 0; first < rows.k; first += kThreads) {
      const std::int64_t own = first + thread;
      const bool meets_tile = own < rows.k && (meets(marks[own].box, tile) || meets(marks[own].tag, tile));
      const unsigned mask = __ballot_sync(kWholeWarp, meets_tile);
      __syncthreads();  // all threads have read the previous masks
      if (thread % kWarp == 0) meeting[thread / kWarp] = mask;
      __syncthreads();
      for (int warp = 0; warp < kThreads / kWarp && tagged < 0; ++warp) {
        for (unsigned rest = meeting[warp]; rest && tagged < 0; rest &= rest - 1) {
          const std::int64_t i = first + warp * kWarp + __ffs(static_cast<int>(rest)) - 1;
          if (covers(marks[i].tag, x, y)) tagged = i;
          const Rectangle& r = marks[i].box;
          const Rectangle inner{r.left + thickness, r.top + thickness, r.right - thickness, r.bottom - thickness};
          if (outlined < 0 && covers(r, x, y) && !covers(inner, x, y)) outlined = i;
        }
      }
    }
    const std::int64_t i = tagged >= 0 ? tagged : outlined;
    if (i < 0 || x >= rows.picture.width || y >= rows.picture.height) continue;
    const Colour colour = tables.palette[marks[i].colour];
    const Colour shown = tagged >= 0 && has_ink(marks[i], rows, x, y) ? ink_on(colour) : colour;
    for (int c = 0; c < 3; ++c) drawn[3 * (y * rows.picture.width + x) + c] = shown.rgb[c];
  }
}

class Cuda : public Checked {
 public:
  Status prepare(const Node& node) {
    settings_ = Settings(node.attributes());
    OPGATE_RETURN_IF_ERROR(letters_.assign(settings_.names.letters));
    return ends_.assign(settings_.names.ends);
  }

  static std::span<Mark> workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    return workspace.take<Mark>(in.size("k"));
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Tensor& image = in["image"];
    auto* const drawn = out["drawn"].data<std::uint8_t>();
    if (image.size() == 0) return {};
    const cudaStream_t stream = stream_of(context);
    OPGATE_RETURN_IF_ERROR(cuda::copy(drawn, image.raw(), static_cast<std::size_t>(image.size()), stream));
    const Rows rows = settings_.rows_of(in, letters_.data(), ends_.data());
    if (rows.k == 0) return {};
    Mark* const marks = workspace(context.workspace(), in, attributes).data();
    make_marks<<<blocks_for(rows.k, kThreads), kThreads, 0, stream>>>(rows, marks);
    OPGATE_RETURN_IF_ERROR(launched());
    constexpr unsigned kMostDown = 65535;
    const dim3 grid(blocks_for(rows.picture.width, kTileWidth),
                    std::min(blocks_for(rows.picture.height, kTileHeight), kMostDown));
    paint<<<grid, kThreads, 0, stream>>>(marks, rows, drawn);
    return launched();
  }

 private:
  Settings settings_;
  cuda::DeviceArray<char> letters_;
  cuda::DeviceArray<std::int32_t> ends_;
};

}  // namespace
}  // namespace opgate::ops::draw_bounding_boxes

OPGATE_CUDA_KERNEL(DrawBoundingBoxes, opgate::ops::draw_bounding_boxes::Cuda)

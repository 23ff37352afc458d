#include "warp_affine.h"

#include "images/crop_index.h"
#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::warp_affine {
namespace {

constexpr int kThreads = 256;

struct Warp {
  const std::uint8_t* pixels;
  const std::int32_t* index;  ///< may be null
  std::int64_t n, r;
  int h, w;
  const Map* maps;
  Settings settings;
  float* planes;

  /// The picture of a crop. -1 if there is none: all of the crop is border.
  __device__ std::int64_t picture_of(std::int64_t crop) const {
    const std::int64_t number = index ? index[crop] : n == 1 ? 0 : crop;
    return number >= 0 && number < n ? number : -1;
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    find_maps(std::int64_t count, bool inverted, const T* __restrict__ matrix, Map* __restrict__ maps) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) maps[i] = Map::of(matrix + 6 * i, inverted);
}

/// A thread computes a pixel in all three planes. Threads side by side have pixels side by side.
__global__ void __launch_bounds__(kThreads) warp_pixels(Warp warp) {
  const std::int64_t plane = std::int64_t{warp.settings.height} * warp.settings.width;
  const std::int64_t element = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (element >= warp.r * plane) return;
  const std::int64_t crop = element / plane;
  const int place = static_cast<int>(element - crop * plane);
  const int y = place / warp.settings.width, x = place - y * warp.settings.width;
  const Map map = warp.maps[crop];
  const double at_x = within(map.b * y + map.c + map.a * x, warp.w);
  const double at_y = within(map.e * y + map.f + map.d * x, warp.h);
  const int column = pixel_before(at_x), row = pixel_before(at_y);
  const float across = static_cast<float>(at_x - column), down = static_cast<float>(at_y - row);
  const std::int64_t picture = warp.picture_of(crop);
  const std::uint8_t* corners[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int py = row + k / 2, px = column + k % 2;
    const bool inside = picture >= 0 && py >= 0 && py < warp.h && px >= 0 && px < warp.w;
    corners[k] = inside ? warp.pixels + 3 * ((picture * warp.h + py) * warp.w + px) : nullptr;
  }
#pragma unroll
  for (int c = 0; c < 3; ++c) {
    float values[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) values[k] = corners[k] ? corners[k][c] : warp.settings.border[c];
    const float upper = values[0] + (values[1] - values[0]) * across;
    const float lower = values[2] + (values[3] - values[2]) * across;
    warp.planes[(3 * crop + c) * plane + place] =
        (upper + (lower - upper) * down) * warp.settings.normalization.scale[c] + warp.settings.normalization.bias[c];
  }
}

class Cuda : public Checked {
 public:
  struct Memory {
    std::span<Map> maps;
  };

  template <typename T>
  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes&) {
    return {workspace.take<Map>(in.size("r"))};
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    OPGATE_RETURN_IF_ERROR(images::check_index(in, "matrices"));
    const MutableTensor& tensor = out["tensor"];
    if (tensor.size() == 0) return {};
    const Memory memory = workspace<T>(context.workspace(), in, attributes);
    const Settings settings = Settings::of(attributes);
    const std::int64_t r = in.size("r");
    const Warp warp{in["image"].data<std::uint8_t>(),
                    in.has("index") ? in["index"].data<std::int32_t>() : nullptr,
                    in.size("n"),
                    r,
                    static_cast<int>(in.size("h")),
                    static_cast<int>(in.size("w")),
                    memory.maps.data(),
                    settings,
                    tensor.data<float>()};
    find_maps<<<blocks_for(r, kThreads), kThreads, 0, stream_of(context)>>>(r, settings.maps_to_crop,
                                                                            in["matrix"].data<T>(), memory.maps.data());
    OPGATE_RETURN_IF_ERROR(launched());
    warp_pixels<<<blocks_for(tensor.size() / 3, kThreads), kThreads, 0, stream_of(context)>>>(warp);
    return launched();
  }
};

}  // namespace
}  // namespace opgate::ops::warp_affine

OPGATE_CUDA_KERNEL(WarpAffine, opgate::ops::warp_affine::Cuda)

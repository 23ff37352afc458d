#include "perspective_crop.h"

#include "core/elementwise.h"
#include "images/crop_index.h"
#include "quad_map.h"

namespace opgate::ops::perspective_crop {
namespace {

/// The pixels around a place along an axis, and their weights.
struct Taps {
  std::array<std::int64_t, 4> pixels;
  std::array<float, 4> weights;

  /// `size` is that of the axis, at least 1. Pixels beyond an edge count as the one at the edge.
  static Taps of(double at, std::int64_t size, bool cubic) {
    const auto most = static_cast<double>(size) + 2;
    const double least = at >= -3 ? at : -3;  // also for a NaN
    const double held = least <= most ? least : most;
    const double before = std::floor(held);
    const auto t = static_cast<float>(held - before);
    Taps taps;
    for (std::int64_t k = 0; k < 4; ++k)
      taps.pixels[k] = std::clamp<std::int64_t>(static_cast<std::int64_t>(before) + k - 1, 0, size - 1);
    if (cubic) {
      const float first = far(1 + t), second = near(t), third = near(1 - t);
      taps.weights = {first, second, third, 1 - first - second - third};
    } else {
      taps.weights = {0, 1 - t, t, 0};
    }
    return taps;
  }

 private:
  /// Keys' cubic convolution with a = -3/4 at a distance of 0..1, and of 1..2.
  static float near(float x) { return ((kA + 2) * x - (kA + 3)) * x * x + 1; }
  static float far(float x) { return ((kA * x - 5 * kA) * x + 8 * kA) * x - 4 * kA; }

  static constexpr float kA = -0.75f;
};

struct Picture {
  const std::uint8_t* pixels;
  std::int64_t height, width;

  /// The colour at a place, each channel within 0..255.
  std::array<float, 3> at(const QuadMap::Place& place, bool cubic) const {
    const Taps across = Taps::of(place.x, width, cubic), down = Taps::of(place.y, height, cubic);
    std::array<float, 3> sums{};
    for (std::size_t j = 0; j < 4; ++j) {
      const std::uint8_t* const row = pixels + down.pixels[j] * width * 3;
      for (std::size_t c = 0; c < 3; ++c) {
        float sum = 0;
        for (std::size_t i = 0; i < 4; ++i)
          sum += static_cast<float>(row[3 * across.pixels[i] + static_cast<std::int64_t>(c)]) * across.weights[i];
        sums[c] += sum * down.weights[j];
      }
    }
    for (float& sum : sums) sum = std::clamp(sum, 0.0f, 255.0f);
    return sums;
  }
};

struct Cpu : Checked {
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    images::CropIndex index;
    OPGATE_RETURN_IF_ERROR(images::CropIndex::make(in, "quads", index));
    const std::int64_t h = in.size("h"), w = in.size("w"), r = in.size("r"), height = attributes.integer("height");
    const std::vector<QuadMap> maps = maps_of(in, attributes);
    std::int64_t columns = 0;
    for (const QuadMap& map : maps) columns = std::max(columns, map.width);
    OPGATE_RETURN_IF_ERROR(out.bind("c", columns));
    auto* const widths = out["widths"].data<std::int32_t>();
    for (std::int64_t i = 0; i < r; ++i) widths[i] = static_cast<std::int32_t>(maps[i].width);

    const images::Normalization normalization = images::normalization_of(attributes);
    const bool cubic = attributes.text("filter") == "cubic", reversed = attributes.text("order") == "BGR";
    const auto* const pixels = in["image"].data<std::uint8_t>();
    auto* const crops = out["crops"].data<float>();
    const std::int64_t plane = height * columns, grain = kElementGrain / (64 * std::max<std::int64_t>(columns, 1)) + 1;
    context.parallel_for(r * height, grain, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        const std::int64_t crop = i / height, y = i % height;
        const QuadMap& map = maps[crop];
        float* const row = crops + crop * 3 * plane + y * columns;
        const Picture picture{pixels + index.picture_of(crop) * h * w * 3, h, w};
        for (std::int64_t x = 0; x < map.width; ++x) {
          const auto colour = picture.at(map.at(static_cast<double>(x), static_cast<double>(y)), cubic);
          for (std::size_t k = 0; k < 3; ++k) {
            const float value = colour[reversed ? 2 - k : k];
            row[static_cast<std::int64_t>(k) * plane + x] = value * normalization.scale[k] + normalization.bias[k];
          }
        }
        for (std::int64_t k = 0; k < 3; ++k) std::fill(row + k * plane + map.width, row + k * plane + columns, 0.0f);
      }
    });
    return {};
  }

 private:
  /// The map of each quad. A picture without pixels has no crops.
  static std::vector<QuadMap> maps_of(const Inputs& in, const Attributes& attributes) {
    std::vector<QuadMap> maps(static_cast<std::size_t>(in.size("r")));
    const auto* quad = in["quads"].data<float>();
    if (in.size("h") == 0 || in.size("w") == 0) return maps;
    for (QuadMap& map : maps) {
      map = QuadMap::of(quad, attributes.integer("height"), attributes.integer("width"),
                        attributes.number("rotate_from"));
      quad += 8;
    }
    return maps;
  }
};

}  // namespace
}  // namespace opgate::ops::perspective_crop

OPGATE_CPU_KERNEL(PerspectiveCrop, opgate::ops::perspective_crop::Cpu)

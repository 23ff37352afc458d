#include "perspective_crop.h"

#include "images/crop_index.h"
#include "kernel_toolkit/elementwise.h"
#include "quad_map.h"

namespace opgate::ops::perspective_crop {
namespace {

/// The pixels around a place along an axis, and their weights: four for a cubic, two for a line.
template <std::size_t count>
struct Taps {
  std::array<std::int64_t, count> pixels;
  std::array<float, count> weights;

  /// `size` is that of the axis, at least 1. Pixels beyond an edge count as the one at the edge.
  Taps(double at, std::int64_t size) {
    const auto most = static_cast<double>(size) + 2;
    const double least = at >= -3 ? at : -3;  // also for a NaN
    const double held = least <= most ? least : most;
    const double before = std::floor(held);
    const auto t = static_cast<float>(held - before);
    const auto first = static_cast<std::int64_t>(before) - static_cast<std::int64_t>(count / 2 - 1);
    for (std::size_t k = 0; k < count; ++k)
      pixels[k] = std::clamp<std::int64_t>(first + static_cast<std::int64_t>(k), 0, size - 1);
    if constexpr (count == 4) {
      weights = {far(1 + t), near(t), near(1 - t), 0};
      weights[3] = 1 - weights[0] - weights[1] - weights[2];
    } else {
      weights = {1 - t, t};
    }
  }

  bool within() const { return pixels.back() - pixels.front() == static_cast<std::int64_t>(count - 1); }

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
  template <std::size_t count>
  std::array<float, 3> at(const QuadMap::Place& place) const {
    const Taps<count> across(place.x, width), down(place.y, height);
    std::array<float, 3 * count> columns{};  // the pixels beside each other, blended downwards
    for (std::size_t j = 0; j < count; ++j) {
      const std::uint8_t* const row = pixels + 3 * down.pixels[j] * width;
      if (across.within()) {
        const std::uint8_t* const first = row + 3 * across.pixels[0];
        for (std::size_t k = 0; k < 3 * count; ++k) columns[k] += static_cast<float>(first[k]) * down.weights[j];
      } else {
        for (std::size_t k = 0; k < 3 * count; ++k)
          columns[k] += static_cast<float>(row[3 * across.pixels[k / 3] + std::int64_t(k % 3)]) * down.weights[j];
      }
    }
    std::array<float, 3> colour{};
    for (std::size_t c = 0; c < 3; ++c) {
      for (std::size_t i = 0; i < count; ++i) colour[c] += columns[3 * i + c] * across.weights[i];
      colour[c] = std::clamp(colour[c], 0.0f, 255.0f);
    }
    return colour;
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
          const QuadMap::Place place = map.at(static_cast<double>(x), static_cast<double>(y));
          const auto colour = cubic ? picture.at<4>(place) : picture.at<2>(place);
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

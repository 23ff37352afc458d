#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/op.h"

OPGATE_OP(RoiAlignRotated,
          "<T: f16|bf16|f32> RoiAlignRotated(input: T[n,c,h,w], rois: f32[r,6]; output_height: int, output_width: int, "
          "spatial_scale: float=1, sampling_ratio: int=0, aligned: bool=true, clockwise: bool=false) "
          "-> (output: T[r,c,output_height,output_width])",
          "Averages samples of rotated regions (batch, cx, cy, w, h, angle) into bins.")

namespace opgate::ops::roi_align_rotated {

/// The most samples along an axis of a bin.
inline constexpr std::int64_t kMostSamples = 1024;

struct Settings {
  int height, width;  ///< of the output
  float scale;
  int sampling_ratio;
  bool aligned, clockwise;

  static Settings of(const Attributes& attributes) {
    return {static_cast<int>(attributes.integer("output_height")),
            static_cast<int>(attributes.integer("output_width")),
            static_cast<float>(attributes.number("spatial_scale")),
            static_cast<int>(std::max<std::int64_t>(attributes.integer("sampling_ratio"), 0)),
            attributes.boolean("aligned"),
            attributes.boolean("clockwise")};
  }
};

/// A region in pixels of the input.
struct Region {
  std::int64_t picture;  ///< -1: the region gives 0
  float x, y, width, height, cosine, sine;
  int samples_across, samples_down;  ///< of a bin

  OPGATE_HOST_DEVICE static int samples(float bin) {
    const float wanted = ceilf(bin);
    return wanted < static_cast<float>(kMostSamples) ? static_cast<int>(wanted) : static_cast<int>(kMostSamples);
  }

  OPGATE_HOST_DEVICE static Region of(const float* roi, std::int64_t pictures, const Settings& settings) {
    Region region{};
    const float shift = settings.aligned ? 0.5f : 0.0f;
    region.x = roi[1] * settings.scale - shift;
    region.y = roi[2] * settings.scale - shift;
    region.width = roi[3] * settings.scale;
    region.height = roi[4] * settings.scale;
    if (!settings.aligned) {
      region.width = region.width < 1 ? 1 : region.width;
      region.height = region.height < 1 ? 1 : region.height;
    }
    const double angle = settings.clockwise ? roi[5] : -roi[5];
    region.cosine = static_cast<float>(cos(angle));
    region.sine = static_cast<float>(sin(angle));
    const float zero = 0 * (region.x + region.y + region.width + region.height + region.cosine);
    const bool good =
        zero == 0 && region.width >= 0 && region.height >= 0 && roi[0] >= 0 && roi[0] < static_cast<float>(pictures);
    region.picture = good ? static_cast<std::int64_t>(roi[0]) : -1;
    const int fixed = settings.sampling_ratio;
    region.samples_across = !good ? 0 : fixed ? fixed : samples(region.width / static_cast<float>(settings.width));
    region.samples_down = !good ? 0 : fixed ? fixed : samples(region.height / static_cast<float>(settings.height));
    return region;
  }
};

/// The four pixels around a sample and their weights. A weight of 0 has some pixel.
struct Sample {
  int rows[2], columns[2];
  float upper, lower, left, right;  ///< the weights of the rows and columns
};

/// The two pixels of an axis around a position, which is at least -1 and at most `size`.
OPGATE_HOST_DEVICE inline void find_pixels(float at, int size, int pixels[2], float& first, float& second) {
  if (at < 0) at = 0;
  const int low = static_cast<int>(at);
  const bool last = low >= size - 1;
  pixels[0] = last ? size - 1 : low;
  pixels[1] = last ? size - 1 : low + 1;
  second = last ? 0 : at - static_cast<float>(low);
  first = 1 - second;
}

/// Sample `down`, `across` of the bin `row`, `column`. All weights are 0 if it is more than a pixel outside.
OPGATE_HOST_DEVICE inline Sample sample_of(const Region& region, const Settings& settings, int height, int width,
                                           int row, int column, int down, int across) {
  const float bin_width = region.width / static_cast<float>(settings.width);
  const float bin_height = region.height / static_cast<float>(settings.height);
  const float dx = -region.width / 2 + static_cast<float>(column) * bin_width +
                   (static_cast<float>(across) + 0.5f) * bin_width / static_cast<float>(region.samples_across);
  const float dy = -region.height / 2 + static_cast<float>(row) * bin_height +
                   (static_cast<float>(down) + 0.5f) * bin_height / static_cast<float>(region.samples_down);
  const float x = dx * region.cosine - dy * region.sine + region.x;
  const float y = dx * region.sine + dy * region.cosine + region.y;
  Sample sample{};
  if (!(y >= -1 && y <= static_cast<float>(height) && x >= -1 && x <= static_cast<float>(width))) return sample;
  find_pixels(y, height, sample.rows, sample.upper, sample.lower);
  find_pixels(x, width, sample.columns, sample.left, sample.right);
  return sample;
}

/// What both kernels have in common.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    for (const char* name : {"output_height", "output_width"}) {
      if (attributes.integer(name) > 4096) return attributes.refuse(name, "at most 4096");
    }
    const double scale = attributes.number("spatial_scale");
    if (!(scale > 0) || std::isinf(scale)) return attributes.refuse("spatial_scale", "a positive finite number");
    if (attributes.integer("sampling_ratio") > kMostSamples)
      return attributes.refuse("sampling_ratio", "at most " + std::to_string(kMostSamples));
    const auto h = sizes["h"], w = sizes["w"];
    std::int64_t pixels = 0;
    if (h && w && (__builtin_mul_overflow(*h, *w, &pixels) || pixels > kMost)) {
      return Status::invalid("input 'input': expected h w <= " + std::to_string(kMost) + ", got " + std::to_string(*h) +
                             " x " + std::to_string(*w));
    }
    return {};
  }
};

}  // namespace opgate::ops::roi_align_rotated

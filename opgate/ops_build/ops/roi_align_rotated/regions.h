// Where the samples of rotated regions lie: what RoiAlignRotated and its gradient have in common.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>

#include "kernel_toolkit/op.h"

namespace opgate::ops::roi_align_rotated {

/// The most samples along an axis of a bin.
inline constexpr std::int64_t kMostSamples = 1024;

struct Settings {
  int height, width;  ///< of the output
  float scale;
  int sampling_ratio;
  bool aligned, clockwise;

  OPGATE_HOST_DEVICE std::int64_t bins() const { return std::int64_t{height} * width; }

  static Settings of(const Attributes& attributes, std::int64_t height, std::int64_t width) {
    return {static_cast<int>(height),
            static_cast<int>(width),
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

  OPGATE_HOST_DEVICE std::int64_t samples() const { return std::int64_t{samples_across} * samples_down; }

  OPGATE_HOST_DEVICE static int samples_along(float bin) {
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
    region.samples_across = !good   ? 0
                            : fixed ? fixed
                                    : samples_along(region.width / static_cast<float>(settings.width));
    region.samples_down = !good   ? 0
                          : fixed ? fixed
                                  : samples_along(region.height / static_cast<float>(settings.height));
    return region;
  }
};

/// The four pixels around a sample and their weights. A weight of 0 has some pixel.
struct Sample {
  int rows[2], columns[2];
  float upper, lower, left, right;  ///< the weights of the rows and columns; all are 0 if the sample is outside

  OPGATE_HOST_DEVICE bool inside() const { return upper + lower > 0; }
  OPGATE_HOST_DEVICE std::int32_t place(int corner, int width) const {
    return rows[corner / 2] * width + columns[corner % 2];
  }
  OPGATE_HOST_DEVICE float weight(int corner) const {
    return (corner / 2 ? lower : upper) * (corner % 2 ? right : left);
  }
};

/// The two pixels of an axis around a position, which is at least -1 and at most `size`.
OPGATE_HOST_DEVICE inline void find_pixels(float at, int size, int pixels[2], float& first, float& second) {
  if (at < 0) at = 0;
  const bool last = at >= static_cast<float>(size - 1);
  pixels[0] = last ? size - 1 : static_cast<int>(at);
  pixels[1] = last ? size - 1 : pixels[0] + 1;
  second = last ? 0 : at - static_cast<float>(pixels[0]);
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

/// Narrows [begin, end) to the t for which start + step t may lie in [low, high].
OPGATE_HOST_DEVICE inline void narrow_to(double start, double step, double low, double high, double& begin,
                                         double& end) {
  if (step < 0) return narrow_to(-start, -step, -high, -low, begin, end);
  if (step == 0) {
    if (!(start >= low && start <= high)) end = begin;
    return;
  }
  const double first = (low - start) / step - 1, last = (high - start) / step + 2;
  begin = first > begin ? first : begin;
  end = last < end ? last : end;
}

/// Samples [begin, end) of a row of samples of a bin.
struct SampleRange {
  int begin, end;

  /// Those of row `down` of the bin `row`, `column` that may lie in the picture. It leaves out nearly all samples of a
  /// region that is much larger than the picture: they aren't worth a look each.
  OPGATE_HOST_DEVICE static SampleRange inside(const Region& region, const Settings& settings, int height, int width,
                                               int row, int column, int down) {
    const double bin_width = static_cast<double>(region.width) / settings.width;
    const double bin_height = static_cast<double>(region.height) / settings.height;
    const double step = bin_width / region.samples_across;
    const double dx = column * bin_width - static_cast<double>(region.width) / 2 + step / 2;
    const double dy =
        row * bin_height - static_cast<double>(region.height) / 2 + (down + 0.5) * bin_height / region.samples_down;
    const double cosine = region.cosine, sine = region.sine;
    // More than what sample_of rounds.
    const double room = 0x1p-20 * (fabs(static_cast<double>(region.x)) + fabs(static_cast<double>(region.y)) +
                                   static_cast<double>(region.width) + static_cast<double>(region.height));
    double begin = 0, end = region.samples_across;
    narrow_to(dx * cosine - dy * sine + region.x, step * cosine, -1 - room, width + room, begin, end);
    narrow_to(dx * sine + dy * cosine + region.y, step * sine, -1 - room, height + room, begin, end);
    return begin < end ? SampleRange{static_cast<int>(begin), static_cast<int>(end)} : SampleRange{0, 0};
  }
};

/// The most bins of a region along an axis.
inline constexpr std::int64_t kMostBins = 4096;

/// The `check` of all kernels but for the number of bins.
struct ChecksSamples {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
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

/// Refuses regions of no picture and negative sides. On the CPU.
inline Status check_rois(const Tensor& rois, std::int64_t n, const Settings& settings) {
  const std::span<const float> values = rois.span<float>();
  for (std::size_t i = 0; i < values.size(); i += 6) {
    const auto wrong = [&](std::size_t column, const std::string& expected) {
      return Status::invalid("input 'rois': element " + std::to_string(i + column) + " is " +
                             std::to_string(values[i + column]) + ", expected " + expected);
    };
    if (!(values[i] >= 0 && values[i] < static_cast<float>(n)))
      return wrong(0, "the number of a picture, below " + std::to_string(n));
    for (const std::size_t side : {std::size_t{3}, std::size_t{4}}) {
      if (settings.aligned && values[i + side] < 0) return wrong(side, "a side that isn't negative");
    }
  }
  return {};
}

}  // namespace opgate::ops::roi_align_rotated

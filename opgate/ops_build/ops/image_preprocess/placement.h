// The position of a resized picture in the input of a model.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>

#include "images/taps.h"

namespace opgate::ops::image_preprocess {

enum class Fit { letterbox, letterbox_start, stretch, crop, fit_height, multiples };

/// A side of a resized picture has `whole` pixels. [first, first + count) of them are in the result.
struct Part {
  int whole = 0, first = 0, count = 0;

  Part mirrored() const { return {whole, whole - first - count, count}; }
};

struct Placement {
  static constexpr std::int64_t kMaxSide = 1 << 24;

  int width, height;  ///< the size of the resized picture
  int left, top;      ///< the position of its first pixel in the result; negative where pixels are cut off
  int reduction;      ///< 8, 4, 2 or 1: how much the decoder may shrink the picture before it is resized
  Part columns, rows;

  /// A picture of source_width x source_height in a result of width x height. Nothing, if a side of the resized picture
  /// would be longer than kMaxSide.
  static std::optional<Placement> of(std::int64_t source_width, std::int64_t source_height, std::int64_t width,
                                     std::int64_t height, Fit fit, std::int64_t shorter_side, std::int64_t multiple) {
    const auto [scaled_width, scaled_height] =
        scaled_size(source_width, source_height, width, height, fit, shorter_side, multiple);
    if (std::max(scaled_width, scaled_height) > kMaxSide) return std::nullopt;
    std::int64_t left = 0, top = 0;
    if (fit == Fit::letterbox) {
      left = (width - scaled_width) / 2;
      top = (height - scaled_height) / 2;
    } else if (fit == Fit::crop) {
      left = centred(width, scaled_width);
      top = centred(height, scaled_height);
    }
    std::int64_t reduction = 8;
    while ((source_width + reduction - 1) / reduction < scaled_width ||
           (source_height + reduction - 1) / reduction < scaled_height) {
      if (reduction == 1) break;  // the picture is enlarged
      reduction /= 2;
    }
    return Placement{static_cast<int>(scaled_width),  static_cast<int>(scaled_height), static_cast<int>(left),
                     static_cast<int>(top),           static_cast<int>(reduction),     part(scaled_width, left, width),
                     part(scaled_height, top, height)};
  }

 private:
  static std::array<std::int64_t, 2> scaled_size(std::int64_t source_width, std::int64_t source_height,
                                                 std::int64_t width, std::int64_t height, Fit fit,
                                                 std::int64_t shorter_side, std::int64_t multiple) {
    const double across = static_cast<double>(width) / static_cast<double>(source_width);
    const double down = static_cast<double>(height) / static_cast<double>(source_height);
    const auto rounded = [](std::int64_t source, double ratio) {
      return std::max<std::int64_t>(1,
                                    static_cast<std::int64_t>(std::floor(static_cast<double>(source) * ratio + 0.5)));
    };
    switch (fit) {
      case Fit::stretch: return {width, height};
      case Fit::fit_height: {
        const double ratio = static_cast<double>(source_width) / static_cast<double>(source_height);
        const double wanted = std::ceil(static_cast<double>(height) * ratio);
        return {wanted < static_cast<double>(width) ? std::max<std::int64_t>(1, std::int64_t(wanted)) : width, height};
      }
      case Fit::crop: {
        const double ratio = std::max(across, down);
        if (shorter_side == 0) return {rounded(source_width, ratio), rounded(source_height, ratio)};
        const std::int64_t shorter = std::min(source_width, source_height);
        return {shorter_side * source_width / shorter, shorter_side * source_height / shorter};
      }
      case Fit::multiples: {
        const double enlarged =
            static_cast<double>(shorter_side) / static_cast<double>(std::min(source_width, source_height));
        const double ratio = std::min({std::max(1.0, enlarged), across, down});
        const auto nearest = [&](std::int64_t source, std::int64_t most) {
          const auto whole = static_cast<std::int64_t>(static_cast<double>(source) * ratio);
          const double multiples = static_cast<double>(whole) / static_cast<double>(multiple);
          return std::clamp<std::int64_t>(std::llrint(multiples) * multiple, multiple, most);
        };
        return {nearest(source_width, width), nearest(source_height, height)};
      }
      case Fit::letterbox_start: {  // as int() of Python
        const double ratio = std::min(across, down);
        const auto whole = [ratio](std::int64_t source) {
          return std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(source) * ratio));
        };
        return {std::min(width, whole(source_width)), std::min(height, whole(source_height))};
      }
      default: {  // as round() of Python
        const double ratio = std::min(across, down);
        const auto nearest = [ratio](std::int64_t source) {
          return std::max<std::int64_t>(1, std::llrint(static_cast<double>(source) * ratio));
        };
        return {std::min(width, nearest(source_width)), std::min(height, nearest(source_height))};
      }
    }
  }

  /// Where a side begins whose centre is that of the result, as torchvision's center_crop has it.
  static std::int64_t centred(std::int64_t room, std::int64_t size) {
    return size < room ? (room - size) / 2 : -images::half_even(size - room);
  }

  static Part part(std::int64_t size, std::int64_t start, std::int64_t room) {
    const std::int64_t first = std::max<std::int64_t>(0, -start);
    const std::int64_t last = std::min(size, room - start);
    return {static_cast<int>(size), static_cast<int>(first), static_cast<int>(last - first)};
  }
};

}  // namespace opgate::ops::image_preprocess

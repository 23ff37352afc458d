// The position of a picture in the input of a model: scaled to fit, centred, with padding around it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace opgate::ops::image_preprocess {

struct Letterbox {
  int width, height;  ///< the size of the scaled picture
  int left, top;
  int reduction;  ///< 8, 4, 2 or 1: how much the decoder may shrink the picture before it is resized

  static Letterbox of(std::int64_t source_width, std::int64_t source_height, std::int64_t width, std::int64_t height) {
    const double ratio = std::min(static_cast<double>(width) / static_cast<double>(source_width),
                                  static_cast<double>(height) / static_cast<double>(source_height));
    const auto scaled = [ratio](std::int64_t source, std::int64_t most) {
      const auto size = static_cast<std::int64_t>(std::floor(static_cast<double>(source) * ratio + 0.5));
      return std::clamp<std::int64_t>(size, 1, most);
    };
    const std::int64_t scaled_width = scaled(source_width, width);
    const std::int64_t scaled_height = scaled(source_height, height);
    std::int64_t reduction = 8;
    while ((source_width + reduction - 1) / reduction < scaled_width ||
           (source_height + reduction - 1) / reduction < scaled_height) {
      if (reduction == 1) break;  // the picture is enlarged
      reduction /= 2;
    }
    return {static_cast<int>(scaled_width), static_cast<int>(scaled_height),
            static_cast<int>((width - scaled_width) / 2), static_cast<int>((height - scaled_height) / 2),
            static_cast<int>(reduction)};
  }
};

}  // namespace opgate::ops::image_preprocess

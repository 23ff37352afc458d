#pragma once

#include <algorithm>

#include "core/op.h"
#include "images/normalization.h"

OPGATE_OP(ResizeNormalize,
          "ResizeNormalize(image: u8[n,h,w,3]; height: int, width: int, mean: float[3]=[0,0,0], std: float[3]=[1,1,1], "
          "interpolation: {linear|nearest}=linear) -> (tensor: f32[n,3,height,width])",
          "Resizes and normalizes pictures and writes them as planes.")

namespace opgate::ops::resize_normalize {

inline constexpr std::int64_t kMaxSide = 1 << 24;

struct Size {
  int height, width;

  bool operator==(const Size&) const = default;
};

/// The checked attributes.
struct Settings {
  Size to{};
  bool linear = true;
  images::Normalization normalization{};

  Status read(const Attributes& attributes) {
    for (const char* name : {"height", "width"}) {
      if (const std::int64_t side = attributes.integer(name); side > kMaxSide) {
        return Status::invalid("attribute '" + std::string(name) + "': expected at most " + std::to_string(kMaxSide) +
                               ", got " + std::to_string(side));
      }
    }
    to = {static_cast<int>(attributes.integer("height")), static_cast<int>(attributes.integer("width"))};
    linear = attributes.text("interpolation") == "linear";
    return images::read_normalization(attributes, normalization);
  }
};

inline bool can_resize(std::int64_t height, std::int64_t width) {
  return std::min(height, width) > 0 && std::max(height, width) <= kMaxSide;
}

/// The size of the pictures, if it is static and can be resized.
inline std::optional<Size> known_size(const Node& node) {
  const std::optional<std::int64_t> height = node.size("h"), width = node.size("w");
  if (!height || !width || !can_resize(*height, *width)) return std::nullopt;
  return Size{static_cast<int>(*height), static_cast<int>(*width)};
}

/// The size of the pictures of a call.
inline Status read_size(const Inputs& in, Size& size) {
  const std::int64_t height = in.size("h"), width = in.size("w");
  if (!can_resize(height, width)) {
    return Status::invalid("input 'image': expected sides of 1.." + std::to_string(kMaxSide) + ", got " +
                           dims_text(in["image"].dims()));
  }
  size = {static_cast<int>(height), static_cast<int>(width)};
  return {};
}

}  // namespace opgate::ops::resize_normalize

#pragma once

#include <algorithm>
#include <array>

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

struct Settings {
  Size to{};
  bool linear = true;
  images::Normalization normalization{};

  static Settings of(const Attributes& attributes) {
    return {{static_cast<int>(attributes.integer("height")), static_cast<int>(attributes.integer("width"))},
            attributes.text("interpolation") == "linear",
            images::normalization_of(attributes)};
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

/// The size of the pictures of a call whose output isn't empty.
inline Size size_of_call(const Inputs& in) { return {static_cast<int>(in.size("h")), static_cast<int>(in.size("w"))}; }

/// What both kernels have in common.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    for (const char* name : {"height", "width"}) {
      if (attributes.integer(name) > kMaxSide) return attributes.refuse(name, "at most " + std::to_string(kMaxSide));
    }
    OPGATE_RETURN_IF_ERROR(images::check_normalization(attributes));
    const std::optional<std::int64_t> n = sizes["n"], h = sizes["h"], w = sizes["w"];
    const bool empty = !n || *n == 0 || attributes.integer("height") == 0 || attributes.integer("width") == 0;
    if (empty || !h || !w || can_resize(*h, *w)) return {};
    return Status::invalid("input 'image': expected sides of 1.." + std::to_string(kMaxSide) + ", got " +
                           dims_text(std::array{*n, *h, *w, std::int64_t{3}}));
  }
};

}  // namespace opgate::ops::resize_normalize

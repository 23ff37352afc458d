#pragma once

#include <algorithm>
#include <array>

#include "images/normalization.h"
#include "images/taps.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(ResizeNormalize,
          "ResizeNormalize(image: u8[n,h,w,c]; height: int, width: int, mean: float[]=[0], std: float[]=[1], "
          "interpolation: {linear|nearest}=linear, antialias: bool=false, shorter_side: int=0) "
          "-> (tensor: f32[n,c,height,width])",
          "Resizes pictures, takes their centres, normalizes them and writes them as planes.")

namespace opgate::ops::resize_normalize {

inline constexpr std::int64_t kMaxSide = 1 << 24;

/// The channels that a picture may have: grey, RGB, RGBA.
inline constexpr std::array<std::int64_t, 3> kChannels = {1, 3, 4};

struct Size {
  int height, width;

  bool operator==(const Size&) const = default;
};

struct Settings {
  Size to{};
  bool linear = true, antialias = false;
  int shorter_side = 0;  ///< of the resized pictures, whose centre is the result. 0: the result is all of them.
  images::Normalization normalization{};

  static Settings of(const Attributes& attributes) {
    return {{static_cast<int>(attributes.integer("height")), static_cast<int>(attributes.integer("width"))},
            attributes.text("interpolation") == "linear",
            attributes.boolean("antialias"),
            static_cast<int>(attributes.integer("shorter_side")),
            images::normalization_of(attributes)};
  }
};

inline bool can_resize(std::int64_t height, std::int64_t width) {
  return std::min(height, width) > 0 && std::max(height, width) <= kMaxSide;
}

/// The size of the pictures, if it is static and can be resized, and if they become pictures with pixels.
inline std::optional<Size> known_size(const Node& node) {
  const std::optional<std::int64_t> height = node.size("h"), width = node.size("w");
  if (!height || !width || !can_resize(*height, *width)) return std::nullopt;
  if (node.attributes().integer("height") == 0 || node.attributes().integer("width") == 0) return std::nullopt;
  return Size{static_cast<int>(*height), static_cast<int>(*width)};
}

/// The size of the pictures of a call whose output isn't empty.
inline Size size_of_call(const Inputs& in) { return {static_cast<int>(in.size("h")), static_cast<int>(in.size("w"))}; }

/// Where the result lies in the resized pictures.
struct Placement {
  Size resized;
  int top = 0, left = 0;

  static Placement of(Size from, const Settings& settings) {
    if (settings.shorter_side == 0) return {settings.to};
    const int shorter = std::min(from.height, from.width);
    const auto side = [&](int length) {
      return static_cast<int>(std::int64_t{settings.shorter_side} * length / shorter);
    };
    const Size resized{side(from.height), side(from.width)};
    // torchvision's centre crop
    const auto start = [](int side, int part) { return static_cast<int>(images::half_even(side - part)); };
    return {resized, start(resized.height, settings.to.height), start(resized.width, settings.to.width)};
  }
};

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    for (const char* name : {"height", "width"}) {
      if (attributes.integer(name) > kMaxSide) return attributes.refuse(name, "at most " + std::to_string(kMaxSide));
    }
    OPGATE_RETURN_IF_ERROR(images::check_normalization(attributes));
    if (attributes.boolean("antialias") && attributes.text("interpolation") != "linear")
      return attributes.refuse("antialias", "false, because interpolation isn't linear");
    const std::int64_t side = attributes.integer("shorter_side");
    const std::int64_t most = std::max(attributes.integer("height"), attributes.integer("width"));
    if (side != 0 && (side < most || side > kMaxSide)) {
      return attributes.refuse("shorter_side", "0, or from the greater of height and width, " + std::to_string(most) +
                                                   ", to " + std::to_string(kMaxSide));
    }
    const std::optional<std::int64_t> n = sizes["n"], h = sizes["h"], w = sizes["w"], c = sizes["c"];
    OPGATE_RETURN_IF_ERROR(check_channels(attributes, c));
    const bool empty = !n || *n == 0 || attributes.integer("height") == 0 || attributes.integer("width") == 0;
    if (empty || !h || !w) return {};
    if (can_resize(*h, *w)) {
      const std::int64_t longer = side * std::max(*h, *w) / std::min(*h, *w);
      if (longer <= kMaxSide) return {};
      return Status::invalid("input 'image': expected sides that the resize makes no longer than " +
                             std::to_string(kMaxSide) + ", got " + std::to_string(*h) + " x " + std::to_string(*w) +
                             ", of which it makes " + std::to_string(longer));
    }
    return Status::invalid("input 'image': expected sides of 1.." + std::to_string(kMaxSide) + ", got [" +
                           std::to_string(*n) + ", " + std::to_string(*h) + ", " + std::to_string(*w) + ", " +
                           (c ? std::to_string(*c) : "c") + "]");
  }

 private:
  static Status check_channels(const Attributes& attributes, const std::optional<std::int64_t>& channels) {
    const auto allowed = [](auto count) { return std::ranges::count(kChannels, static_cast<std::int64_t>(count)) > 0; };
    if (channels && !allowed(*channels)) {
      return Status::invalid("input 'image': expected 1, 3 or 4 channels in the last dim, got c = " +
                             std::to_string(*channels));
    }
    for (const char* name : {"mean", "std"}) {
      const auto count = static_cast<std::int64_t>(attributes.numbers(name).size());
      if (count == 1 || (channels ? count == *channels : allowed(count))) continue;
      return attributes.refuse(name, "one number for all channels or one for each of the " +
                                         (channels ? std::to_string(*channels) : std::string("1, 3 or 4")) +
                                         " channels");
    }
    return {};
  }
};

}  // namespace opgate::ops::resize_normalize

// The attributes of ImagePreprocess.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "filter_taps.h"
#include "images/codecs/decoder.h"
#include "images/normalization.h"
#include "placement.h"
#include "signature/attributes.h"

namespace opgate::ops::image_preprocess {

/// The words of the signature, in the order of Fit and of Filter.
inline constexpr std::array<std::string_view, 6> kFits = {"letterbox", "letterbox_start", "stretch",
                                                          "crop",      "fit_height",      "multiples"};
inline constexpr std::array<std::string_view, 12> kFilters = {
    "fast",        "pil_nearest", "pil_box",   "pil_bilinear", "pil_hamming", "pil_bicubic",
    "pil_lanczos", "cv_nearest",  "cv_linear", "cv_area",      "cv_cubic",    "cv_lanczos4"};

template <typename Kind, std::size_t count>
Kind kind_of(const std::array<std::string_view, count>& words, std::string_view word) {
  return static_cast<Kind>(std::ranges::find(words, word) - words.begin());
}

struct Settings {
  std::int64_t height = 0, width = 0, max_pixels = 0, shorter_side = 0, multiple = 1;
  int channels = 3;
  Fit fit = Fit::letterbox;
  Filter filter = Filter::fast;
  std::uint8_t pad = 0;
  images::Normalization normalization{};
  int plane[3]{};  ///< the plane of R, G and B in the output

  Settings() = default;
  explicit Settings(const Attributes& attributes);

  static Status check(const Attributes& attributes);

  float pad_value(int c) const { return static_cast<float>(pad) * normalization.scale[c] + normalization.bias[c]; }

  float* plane_of(int c, float* image) const { return image + plane[c] * height * width; }
};

inline Settings::Settings(const Attributes& attributes)
    : height(attributes.integer("height")),
      width(attributes.integer("width")),
      max_pixels(attributes.integer("max_pixels")),
      shorter_side(attributes.integer("shorter_side")),
      multiple(attributes.integer("multiple")),
      channels(static_cast<int>(attributes.integer("channels"))),
      fit(kind_of<Fit>(kFits, attributes.text("fit"))),
      filter(kind_of<Filter>(kFilters, attributes.text("filter"))),
      pad(static_cast<std::uint8_t>(attributes.integer("pad"))) {
  const images::Normalization stated =
      images::normalization_of(attributes, attributes.text("scale") == "byte" ? 1 : 255);
  const bool reversed = attributes.text("order") == "BGR";
  for (int k = 0; k < 3; ++k) {
    const int channel = reversed ? 2 - k : k;
    normalization.scale[channel] = stated.scale[k];
    normalization.bias[channel] = stated.bias[k];
    plane[channel] = channels == 1 ? 0 : k;
  }
}

inline Status Settings::check(const Attributes& attributes) {
  for (const char* name : {"height", "width"}) {
    const std::int64_t side = attributes.integer(name);
    if (side < 1 || side > codecs::kMaxSide) return attributes.refuse(name, "1..65535");
  }
  if (attributes.integer("max_pixels") < 1) return attributes.refuse("max_pixels", "a positive number");
  if (const std::int64_t pad = attributes.integer("pad"); pad < 0 || pad > 255)
    return attributes.refuse("pad", "0..255");
  const std::int64_t channels = attributes.integer("channels");
  if (channels != 1 && channels != 3) return attributes.refuse("channels", "1 or 3");
  for (const char* name : {"mean", "std"}) {
    const auto count = static_cast<std::int64_t>(attributes.numbers(name).size());
    if (count == 1 || count == channels) continue;
    return attributes.refuse(
        name, channels == 1 ? "one number" : "one number for all channels or one for each of the 3 channels");
  }
  const std::int64_t side = attributes.integer("shorter_side");
  if (side < 0 || side > codecs::kMaxSide) return attributes.refuse("shorter_side", "0..65535");
  const bool multiples = attributes.text("fit") == "multiples";
  if (side > 0 && !multiples && attributes.text("fit") != "crop")
    return attributes.refuse("shorter_side", "0, because fit is neither crop nor multiples");
  const std::int64_t multiple = attributes.integer("multiple");
  if (multiple < 1 || multiple > codecs::kMaxSide) return attributes.refuse("multiple", "1..65535");
  for (const char* name : {"height", "width"}) {
    if (multiples && attributes.integer(name) % multiple != 0)
      return attributes.refuse(name, "a multiple of " + std::to_string(multiple));
  }
  return images::check_normalization(attributes);
}

}  // namespace opgate::ops::image_preprocess

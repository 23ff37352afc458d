// Where boxes and their tags lie and what they say, for every device.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/dtype.h"
#include "font.h"

namespace opgate::ops::drawing {

/// Sixteen colours that stand out from photographs and from one another; the reference reads the same table.
inline constexpr int kColours = 16;
inline constexpr std::uint8_t kPalette[kColours][3] = {
    {230, 57, 70}, {29, 143, 225},  {67, 170, 80},  {255, 183, 3},   {155, 93, 229}, {0, 187, 176},
    {251, 133, 0}, {241, 91, 181},  {118, 200, 40}, {90, 90, 230},   {255, 221, 60}, {0, 150, 120},
    {200, 80, 30}, {120, 205, 255}, {190, 60, 160}, {140, 150, 165},
};

/// Of what is drawn, in whole pixels; right and bottom are the first outside.
struct Rectangle {
  std::int64_t left, top, right, bottom;
};

struct PictureSize {
  std::int64_t width, height;
};

OPGATE_HOST_DEVICE inline std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
OPGATE_HOST_DEVICE inline std::int64_t most(std::int64_t a, std::int64_t b) { return a < b ? b : a; }

/// Rounded. What lies further out than the outline is thick can't be seen; limiting it here keeps the integers small.
OPGATE_HOST_DEVICE inline std::int64_t pixel_of(float value, std::int64_t size, std::int64_t thickness) {
  const auto limit = static_cast<double>(size + thickness);
  const double rounded = std::floor(static_cast<double>(value) + 0.5);
  return static_cast<std::int64_t>(rounded < -limit ? -limit : rounded > limit ? limit : rounded);
}

/// The pixels of a box, or false where it is not finite, upside down or outside of the picture.
OPGATE_HOST_DEVICE inline bool rectangle_of(const float* box, const PictureSize& picture, std::int64_t thickness,
                                            Rectangle& rectangle) {
  for (int i = 0; i < 4; ++i) {
    if (!std::isfinite(box[i])) return false;
  }
  if (box[2] < box[0] || box[3] < box[1]) return false;
  rectangle = {pixel_of(box[0], picture.width, thickness), pixel_of(box[1], picture.height, thickness),
               pixel_of(box[2], picture.width, thickness), pixel_of(box[3], picture.height, thickness)};
  rectangle.right = most(rectangle.right, rectangle.left + 1);
  rectangle.bottom = most(rectangle.bottom, rectangle.top + 1);
  return rectangle.left < picture.width && rectangle.top < picture.height && rectangle.right > 0 &&
         rectangle.bottom > 0;
}

/// Font pixels are so large.
OPGATE_HOST_DEVICE inline std::int64_t text_scale(std::int64_t thickness) { return (thickness + 1) / 2; }

/// The tag of a box: above it, or inside it where there is no room above; always within the picture if it fits.
OPGATE_HOST_DEVICE inline Rectangle tag_of(const Rectangle& box, std::int64_t letters, std::int64_t scale,
                                           const PictureSize& picture) {
  const std::int64_t width = (letters * (kGlyphWidth + 1) - 1) * scale + 4 * scale;
  const std::int64_t height = (kGlyphHeight + 2) * scale;
  const std::int64_t wanted = box.top - height >= 0 ? box.top - height : box.top;
  const std::int64_t left = most(least(box.left, picture.width - width), 0);
  const std::int64_t top = most(least(wanted, picture.height - height), 0);
  return {left, top, left + width, top + height};
}

/// Whether letters on this colour are black, and not white.
OPGATE_HOST_DEVICE inline bool is_light(const std::uint8_t* colour) {
  return 299 * colour[0] + 587 * colour[1] + 114 * colour[2] >= 128000;
}

/// Of a score that isn't NaN.
OPGATE_HOST_DEVICE inline int percent_of(float score) {
  const double limited = score < 0 ? 0 : score > 1 ? 1 : score;
  return static_cast<int>(std::floor(100 * limited + 0.5));
}

}  // namespace opgate::ops::drawing

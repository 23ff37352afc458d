// Filled rectangles and text on RGB pixels, clipped to the picture.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "font.h"

namespace opgate::ops {

using Colour = std::array<std::uint8_t, 3>;

class Canvas {
 public:
  Canvas(std::uint8_t* rgb, std::int64_t width, std::int64_t height) : rgb_(rgb), width_(width), height_(height) {}

  std::int64_t width() const { return width_; }
  std::int64_t height() const { return height_; }

  /// Columns left..right-1 of rows top..bottom-1.
  void fill(std::int64_t left, std::int64_t top, std::int64_t right, std::int64_t bottom, const Colour& colour) {
    left = std::max<std::int64_t>(left, 0);
    top = std::max<std::int64_t>(top, 0);
    right = std::min(right, width_);
    bottom = std::min(bottom, height_);
    for (std::int64_t y = top; y < bottom; ++y) {
      std::uint8_t* pixel = rgb_ + 3 * (y * width_ + left);
      for (std::int64_t x = left; x < right; ++x, pixel += 3) std::copy(colour.begin(), colour.end(), pixel);
    }
  }

  /// Glyphs from (left, top) on, each pixel of the font `scale` pixels wide and high, a pixel of the font between two.
  void write(std::int64_t left, std::int64_t top, std::string_view text, std::int64_t scale, const Colour& colour) {
    for (const char letter : text) {
      if (left >= width_) return;
      const std::uint8_t* glyph = kFont[letter - kFirstGlyph];
      for (int row = 0; row < kGlyphHeight; ++row) {
        for (int column = 0; column < kGlyphWidth; ++column) {
          if (!(glyph[row] >> (kGlyphWidth - 1 - column) & 1)) continue;
          const std::int64_t x = left + column * scale, y = top + row * scale;
          fill(x, y, x + scale, y + scale, colour);
        }
      }
      left += (kGlyphWidth + 1) * scale;
    }
  }

 private:
  std::uint8_t* rgb_;
  std::int64_t width_, height_;
};

}  // namespace opgate::ops

// What paints marks on the CPU.
#pragma once

#include <algorithm>

#include "marks.h"

namespace opgate::ops::draw_bounding_boxes {

/// The rows [top, bottom) of the picture. One thread paints them.
class Band {
 public:
  Band(std::uint8_t* rgb, std::int64_t width, std::int64_t top, std::int64_t bottom)
      : rgb_(rgb), width_(width), top_(top), bottom_(bottom) {}

  void draw_outline(const Rectangle& r, std::int64_t thickness, const Colour& colour) {
    fill({r.left, r.top, r.right, std::min(r.bottom, r.top + thickness)}, colour);
    fill({r.left, std::max(r.top, r.bottom - thickness), r.right, r.bottom}, colour);
    fill({r.left, r.top, std::min(r.right, r.left + thickness), r.bottom}, colour);
    fill({std::max(r.left, r.right - thickness), r.top, r.right, r.bottom}, colour);
  }

  void draw_tag(const Mark& mark, const Rows& rows, const Colour& colour) {
    fill(mark.tag, colour);
    const Colour ink = ink_on(colour);
    const std::int64_t scale = rows.scale(), step = (kGlyphWidth + 1) * scale;
    for (int row = 0; row < kGlyphHeight; ++row) {
      const std::int64_t top = mark.tag.top + (row + 1) * scale;
      if (top >= bottom_ || top + scale <= top_) continue;
      std::int64_t left = mark.tag.left + 2 * scale;
      for (std::int64_t i = 0; i < mark.letters() && left < width_; ++i, left += step) {
        const unsigned pixels = kTables.glyph_row(mark.letter(rows, i), row);
        for (int column = 0; column < kGlyphWidth; ++column) {
          const std::int64_t x = left + column * scale;
          if (pixels >> (kGlyphWidth - 1 - column) & 1u) fill({x, top, x + scale, top + scale}, ink);
        }
      }
    }
  }

 private:
  void fill(const Rectangle& r, const Colour& colour) {
    const std::int64_t left = std::max<std::int64_t>(r.left, 0), right = std::min(r.right, width_);
    const std::int64_t bottom = std::min(r.bottom, bottom_);
    for (std::int64_t y = std::max(r.top, top_); y < bottom; ++y) {
      std::uint8_t* pixel = rgb_ + 3 * (y * width_ + left);
      for (std::int64_t x = left; x < right; ++x, pixel += 3) std::copy_n(colour.rgb, 3, pixel);
    }
  }

  std::uint8_t* rgb_;
  std::int64_t width_, top_, bottom_;
};

}  // namespace opgate::ops::draw_bounding_boxes

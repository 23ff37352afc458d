#include "draw_bounding_boxes.h"

#include <cstring>

namespace opgate::ops::draw_bounding_boxes {
namespace {

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

class Cpu : public Checked {
 public:
  Status prepare(const Node& node) {
    settings_ = Settings(node.attributes());
    return {};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const Rows rows = settings_.rows_of(in, settings_.letters.data(), settings_.ends.data());
    // In the order of painting: a detector's best detection is the first row and is painted last.
    std::vector<Mark> marks;
    for (std::int64_t i = rows.k - 1; i >= 0; --i) {
      if (const Mark mark = mark_of(rows, i); mark.box.right > mark.box.left) marks.push_back(mark);
    }
    const auto* const image = in["image"].data<std::uint8_t>();
    auto* const drawn = out["drawn"].data<std::uint8_t>();
    // A band fits the cache.
    constexpr std::int64_t kBandBytes = 1 << 18;
    const std::int64_t row_bytes = 3 * rows.picture.width;
    const std::int64_t grain = kBandBytes / std::max<std::int64_t>(row_bytes, 1) + 1;
    context.parallel_for(rows.picture.height, grain, [&](std::int64_t top, std::int64_t bottom) {
      std::memcpy(drawn + top * row_bytes, image + top * row_bytes,
                  static_cast<std::size_t>((bottom - top) * row_bytes));
      Band band(drawn, rows.picture.width, top, bottom);
      for (const Mark& mark : marks) band.draw_outline(mark.box, rows.thickness, kTables.palette[mark.colour]);
      for (const Mark& mark : marks) band.draw_tag(mark, rows, kTables.palette[mark.colour]);
    });
    return {};
  }

 private:
  Settings settings_;
};

}  // namespace
}  // namespace opgate::ops::draw_bounding_boxes

OPGATE_CPU_KERNEL(DrawBoundingBoxes, opgate::ops::draw_bounding_boxes::Cpu)

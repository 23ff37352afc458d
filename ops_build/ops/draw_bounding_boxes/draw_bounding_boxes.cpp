#include "draw_bounding_boxes.h"

#include <cmath>
#include <cstring>

#include "canvas.h"

namespace opgate::ops {
namespace {

constexpr std::int64_t kMaxThickness = 1000;

/// Sixteen colours that stand out from photographs and from one another; the reference reads the same table.
constexpr Colour kPalette[16] = {
    {230, 57, 70}, {29, 143, 225},  {67, 170, 80},  {255, 183, 3},   {155, 93, 229}, {0, 187, 176},
    {251, 133, 0}, {241, 91, 181},  {118, 200, 40}, {90, 90, 230},   {255, 221, 60}, {0, 150, 120},
    {200, 80, 30}, {120, 205, 255}, {190, 60, 160}, {140, 150, 165},
};

/// Of a box, in whole pixels; right and bottom are the first outside.
struct Rectangle {
  std::int64_t left, top, right, bottom;
};

struct Rows {
  const float* boxes;
  const float* scores;         ///< or null
  const std::int32_t* labels;  ///< or null
  std::int64_t count;
};

Colour text_colour(const Colour& behind) {
  const bool light = 299 * behind[0] + 587 * behind[1] + 114 * behind[2] >= 128000;
  return light ? Colour{0, 0, 0} : Colour{255, 255, 255};
}

/// The pixels of a box, or false where it is not finite, upside down or outside of the picture.
bool rectangle_of(const float* box, const Canvas& canvas, std::int64_t thickness, Rectangle& rectangle) {
  for (int i = 0; i < 4; ++i) {
    if (!std::isfinite(box[i])) return false;
  }
  if (box[2] < box[0] || box[3] < box[1]) return false;
  // What lies further out than the outline is thick can't be seen; limiting it here keeps the integers small.
  const auto rounded = [thickness](float value, std::int64_t size) {
    const double limit = static_cast<double>(size + thickness);
    return static_cast<std::int64_t>(std::clamp(std::floor(static_cast<double>(value) + 0.5), -limit, limit));
  };
  const std::int64_t width = canvas.width(), height = canvas.height();
  rectangle = {rounded(box[0], width), rounded(box[1], height), rounded(box[2], width), rounded(box[3], height)};
  rectangle.right = std::max(rectangle.right, rectangle.left + 1);
  rectangle.bottom = std::max(rectangle.bottom, rectangle.top + 1);
  return rectangle.left < width && rectangle.top < height && rectangle.right > 0 && rectangle.bottom > 0;
}

void outline(Canvas& canvas, const Rectangle& r, std::int64_t thickness, const Colour& colour) {
  canvas.fill(r.left, r.top, r.right, std::min(r.bottom, r.top + thickness), colour);
  canvas.fill(r.left, std::max(r.top, r.bottom - thickness), r.right, r.bottom, colour);
  canvas.fill(r.left, r.top, std::min(r.right, r.left + thickness), r.bottom, colour);
  canvas.fill(std::max(r.left, r.right - thickness), r.top, r.right, r.bottom, colour);
}

/// A filled label above the box, or inside it where there is no room above; always within the picture if it fits.
void tag(Canvas& canvas, const Rectangle& r, std::string_view text, std::int64_t scale, const Colour& colour) {
  const auto letters = static_cast<std::int64_t>(text.size());
  const std::int64_t width = (letters * (kGlyphWidth + 1) - 1) * scale + 4 * scale;
  const std::int64_t height = (kGlyphHeight + 2) * scale;
  const std::int64_t wanted = r.top - height >= 0 ? r.top - height : r.top;
  const std::int64_t left = std::max<std::int64_t>(std::min(r.left, canvas.width() - width), 0);
  const std::int64_t top = std::max<std::int64_t>(std::min(wanted, canvas.height() - height), 0);
  canvas.fill(left, top, left + width, top + height, colour);
  canvas.write(left + 2 * scale, top + scale, text, scale, text_colour(colour));
}

/// What the font can write: every character that it lacks is a '?', a multi-byte one of UTF-8 too.
std::string writable(std::string_view name) {
  std::string text;
  for (const char letter : name) {
    const bool continuation = (static_cast<unsigned char>(letter) & 0xc0) == 0x80;
    if (letter >= kFirstGlyph && letter <= kLastGlyph)
      text += letter;
    else if (!continuation)
      text += '?';
  }
  return text;
}

/// "person 87%"
std::string text_of(const Rows& rows, std::int64_t i, const std::vector<std::string>& names) {
  std::string text;
  if (rows.labels) {
    const auto label = static_cast<std::size_t>(rows.labels[i]);
    text = label < names.size() ? names[label] : std::to_string(label);
  }
  if (rows.scores && !std::isnan(rows.scores[i])) {
    const double score = std::clamp<double>(rows.scores[i], 0, 1);
    if (!text.empty()) text += ' ';
    text += std::to_string(static_cast<int>(std::floor(100 * score + 0.5))) + "%";
  }
  return text;
}

/// A row that is to be drawn.
struct Shown {
  Rectangle rectangle;
  std::int64_t row;
  Colour colour;
};

void draw(Canvas& canvas, const Rows& rows, const std::vector<std::string>& names, std::int64_t thickness) {
  // The first row is the best of a detector's: it is drawn last, on top. All tags lie above all outlines.
  std::vector<Shown> all;
  for (std::int64_t i = rows.count - 1; i >= 0; --i) {
    const std::int32_t label = rows.labels ? rows.labels[i] : 0;
    Shown shown{{}, i, kPalette[std::max(label, 0) % std::size(kPalette)]};
    if (label >= 0 && rectangle_of(rows.boxes + 4 * i, canvas, thickness, shown.rectangle)) all.push_back(shown);
  }
  for (const Shown& shown : all) outline(canvas, shown.rectangle, thickness, shown.colour);
  for (const Shown& shown : all) {
    const std::string text = text_of(rows, shown.row, names);
    if (!text.empty()) tag(canvas, shown.rectangle, text, (thickness + 1) / 2, shown.colour);
  }
}

struct DrawBoundingBoxesCpu {
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t height = in.size("h"), width = in.size("w");
    std::int64_t thickness = attributes.integer("thickness");
    if (thickness < 0 || thickness > kMaxThickness) {
      return Status::invalid("attribute 'thickness': expected 0 (chosen by the picture's size) to " +
                             std::to_string(kMaxThickness) + ", got " + std::to_string(thickness));
    }
    // round(shorter side / 200)
    if (thickness == 0) thickness = std::clamp<std::int64_t>((std::min(height, width) + 100) / 200, 2, kMaxThickness);

    const auto* const image = in["image"].data<const std::uint8_t>();
    auto* const drawn = out["drawn"].data<std::uint8_t>();
    if (drawn != image) {
      context.parallel_for(3 * height * width, 1 << 20, [&](std::int64_t begin, std::int64_t end) {
        std::memcpy(drawn + begin, image + begin, static_cast<std::size_t>(end - begin));
      });
    }
    Rows rows{in["boxes"].data<const float>(), in.has("scores") ? in["scores"].data<const float>() : nullptr,
              in.has("labels") ? in["labels"].data<const std::int32_t>() : nullptr, in.size("k")};
    if (in.has("count")) rows.count = std::clamp<std::int64_t>(*in["count"].data<const std::int32_t>(), 0, rows.count);
    std::vector<std::string> names;
    for (const std::string& name : attributes.texts("names")) names.push_back(writable(name));
    Canvas canvas(drawn, width, height);
    draw(canvas, rows, names, thickness);
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(DrawBoundingBoxes, opgate::ops::DrawBoundingBoxesCpu)

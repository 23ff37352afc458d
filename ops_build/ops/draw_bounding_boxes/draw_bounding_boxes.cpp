#include "draw_bounding_boxes.h"

#include <cstring>

#include "canvas.h"
#include "checks.h"
#include "formula.h"

namespace opgate::ops {
namespace {

using namespace drawing;

struct Rows {
  const float* boxes;
  const float* scores;         ///< or null
  const std::int32_t* labels;  ///< or null
  std::int64_t count;
};

void outline(Canvas& canvas, const Rectangle& r, std::int64_t thickness, const Colour& colour) {
  canvas.fill(r.left, r.top, r.right, std::min(r.bottom, r.top + thickness), colour);
  canvas.fill(r.left, std::max(r.top, r.bottom - thickness), r.right, r.bottom, colour);
  canvas.fill(r.left, r.top, std::min(r.right, r.left + thickness), r.bottom, colour);
  canvas.fill(std::max(r.left, r.right - thickness), r.top, r.right, r.bottom, colour);
}

void tag(Canvas& canvas, const Rectangle& box, std::string_view text, std::int64_t scale, const Colour& colour) {
  const Rectangle r = tag_of(box, static_cast<std::int64_t>(text.size()), scale, {canvas.width(), canvas.height()});
  canvas.fill(r.left, r.top, r.right, r.bottom, colour);
  const Colour ink = is_light(colour.data()) ? Colour{0, 0, 0} : Colour{255, 255, 255};
  canvas.write(r.left + 2 * scale, r.top + scale, text, scale, ink);
}

/// "person 87%"
std::string text_of(const Rows& rows, std::int64_t i, const std::vector<std::string>& names) {
  std::string text;
  if (rows.labels) {
    const auto label = static_cast<std::size_t>(rows.labels[i]);
    text = label < names.size() ? names[label] : std::to_string(label);
  }
  if (rows.scores && !std::isnan(rows.scores[i])) {
    if (!text.empty()) text += ' ';
    text += std::to_string(percent_of(rows.scores[i])) + "%";
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
    if (label < 0) continue;
    const std::uint8_t* const colour = kPalette[label % kColours];
    Shown shown{{}, i, {colour[0], colour[1], colour[2]}};
    const PictureSize picture{canvas.width(), canvas.height()};
    if (rectangle_of(rows.boxes + 4 * i, picture, thickness, shown.rectangle)) all.push_back(shown);
  }
  for (const Shown& shown : all) outline(canvas, shown.rectangle, thickness, shown.colour);
  for (const Shown& shown : all) {
    const std::string text = text_of(rows, shown.row, names);
    if (!text.empty()) tag(canvas, shown.rectangle, text, text_scale(thickness), shown.colour);
  }
}

struct DrawBoundingBoxesCpu {
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t height = in.size("h"), width = in.size("w");
    std::int64_t thickness = 0;
    OPGATE_RETURN_IF_ERROR(read_thickness(attributes, height, width, thickness));
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
    Canvas canvas(drawn, width, height);
    draw(canvas, rows, writable_names(attributes), thickness);
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(DrawBoundingBoxes, opgate::ops::DrawBoundingBoxesCpu)

#include "draw_polygons.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "ops/draw_bounding_boxes/band.h"

namespace opgate::ops::draw_polygons {
namespace {

using draw_bounding_boxes::Checked;
using draw_bounding_boxes::Colour;
using draw_bounding_boxes::kTables;
using draw_bounding_boxes::Mark;
using draw_bounding_boxes::Names;
using draw_bounding_boxes::Rows;

/// A polygon and its mark: the box around it, whose tag it has.
struct Shape {
  Mark mark;
  const float* corners;  ///< [p, 2]
};

/// The box x1 y1 x2 y2 around corners [p, 2].
std::array<float, 4> box_around(const float* corners, std::int64_t p) {
  const float nothing = std::numeric_limits<float>::quiet_NaN();
  if (p == 0) return {nothing, nothing, nothing, nothing};
  std::array<float, 4> box{corners[0], corners[1], corners[0], corners[1]};
  for (std::int64_t i = 0; i < p; ++i) {
    for (int axis = 0; axis < 2; ++axis) {
      const float value = corners[2 * i + axis];
      if (!std::isfinite(value)) return {nothing, nothing, nothing, nothing};
      box[axis] = std::min(box[axis], value);
      box[2 + axis] = std::max(box[2 + axis], value);
    }
  }
  return box;
}

class Cpu : public Checked {
 public:
  Status prepare(const Node& node) {
    thickness_ = node.attributes().integer("thickness");
    names_ = node.attributes().texts("names");
    for (const std::string& name : names_) letters_.add(name);
    return {};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const draw_bounding_boxes::PictureSize picture{in.size("w"), in.size("h")};
    const std::int64_t k = in.size("k"), p = in.size("p");
    const auto* const polygons = in["polygons"].data<float>();
    const auto* const given = data_or_null<std::int32_t>(in, "labels");
    std::vector<float> boxes;
    for (std::int64_t i = 0; i < k; ++i) {
      const auto box = box_around(polygons + 2 * p * i, p);
      boxes.insert(boxes.end(), box.begin(), box.end());
    }
    Names texts;
    std::vector<std::int32_t> numbers;  // of the rows that have a text of their own
    if (in.has("texts")) {
      for (std::int64_t i = 0; i < k; ++i) {
        texts.add(text_of(in["texts"].data<std::int32_t>() + i * in.size("t"), in.size("t")));
        numbers.push_back(given && given[i] < 0 ? -1 : static_cast<std::int32_t>(i));
      }
    }
    const Names& names = in.has("texts") ? texts : letters_;
    const Rows rows{.boxes = boxes.data(),
                    .scores = data_or_null<float>(in, "scores"),
                    .labels = in.has("texts") ? numbers.data() : given,
                    .count = data_or_null<std::int32_t>(in, "count"),
                    .k = k,
                    .letters = names.letters.data(),
                    .name_ends = names.ends.data(),
                    .names = names.size(),
                    .picture = picture,
                    .thickness = draw_bounding_boxes::thickness_of(thickness_, picture)};
    // In the order of painting: the first row is painted last.
    std::vector<Shape> shapes;
    for (std::int64_t i = k - 1; i >= 0; --i) {
      const Mark mark = draw_bounding_boxes::mark_of(rows, i);
      if (mark.box.right > mark.box.left) shapes.push_back({mark, polygons + 2 * p * i});
    }
    const auto* const image = in["image"].data<std::uint8_t>();
    auto* const drawn = out["drawn"].data<std::uint8_t>();
    const std::int64_t row_bytes = 3 * picture.width;
    constexpr std::int64_t kBandBytes = 1 << 18;  // a band fits the cache
    const std::int64_t grain = kBandBytes / std::max<std::int64_t>(row_bytes, 1) + 1;
    context.parallel_for(picture.height, grain, [&](std::int64_t top, std::int64_t bottom) {
      std::memcpy(drawn + top * row_bytes, image + top * row_bytes,
                  static_cast<std::size_t>((bottom - top) * row_bytes));
      for (const Shape& shape : shapes) draw_outline(shape, p, rows, drawn, top, bottom);
      draw_bounding_boxes::Band band(drawn, picture.width, top, bottom);
      for (const Shape& shape : shapes) band.draw_tag(shape.mark, rows, kTables.palette[shape.mark.colour]);
    });
    return {};
  }

 private:
  /// The names of labels, one behind the other. A label without a name is left out.
  std::string text_of(const std::int32_t* labels, std::int64_t count) const {
    std::string text;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto label = static_cast<std::size_t>(labels[i]);
      if (labels[i] >= 0 && label < names_.size()) text += names_[label];
    }
    return text;
  }

  /// Paints the sides of a polygon within the rows [top, bottom) of the picture.
  static void draw_outline(const Shape& shape, std::int64_t p, const Rows& rows, std::uint8_t* rgb, std::int64_t top,
                           std::int64_t bottom) {
    const Colour colour = kTables.palette[shape.mark.colour];
    const double reach = static_cast<double>(rows.thickness) / 2;
    for (std::int64_t i = 0; i < p; ++i) {
      const float *const from = shape.corners + 2 * i, *const to = shape.corners + 2 * ((i + 1) % p);
      const Side side{from[0], from[1], static_cast<double>(to[0]) - from[0], static_cast<double>(to[1]) - from[1]};
      const auto [left, right] = range(from[0], to[0], reach, 0, rows.picture.width);
      const auto [first, last] = range(from[1], to[1], reach, top, bottom);
      for (std::int64_t y = first; y < last; ++y) {
        const auto [begin, end] = columns(side, y, reach, left, right);
        for (std::int64_t x = begin; x < end; ++x) {
          if (side.is_near(x, y, reach)) std::copy_n(colour.rgb, 3, rgb + 3 * (y * rows.picture.width + x));
        }
      }
    }
  }

  /// The columns in left..right that may be near a side in a row. Few of a long side are.
  static std::pair<std::int64_t, std::int64_t> columns(const Side& side, std::int64_t row, double reach,
                                                       std::int64_t left, std::int64_t right) {
    if (side.dy == 0) return {left, right};
    const double middle = side.x + (static_cast<double>(row) - side.y) * side.dx / side.dy;
    const double away = reach * std::hypot(side.dx, side.dy) / std::abs(side.dy);
    return range(middle, middle, away + 1, left, right);
  }

  /// The whole numbers in first..last that may be near a and b and what lies between.
  static std::pair<std::int64_t, std::int64_t> range(double a, double b, double reach, std::int64_t first,
                                                     std::int64_t last) {
    const auto held = [&](double value) {
      return value < static_cast<double>(first)  ? first
             : value > static_cast<double>(last) ? last
                                                 : static_cast<std::int64_t>(value);
    };
    return {held(std::floor(std::min(a, b) - reach)), held(std::ceil(std::max(a, b) + reach) + 1)};
  }

  std::int64_t thickness_ = 0;
  std::vector<std::string> names_;
  Names letters_;
};

}  // namespace
}  // namespace opgate::ops::draw_polygons

OPGATE_CPU_KERNEL(DrawPolygons, opgate::ops::draw_polygons::Cpu)

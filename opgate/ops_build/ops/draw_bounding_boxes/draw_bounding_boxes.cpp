#include "draw_bounding_boxes.h"

#include <cstring>

#include "band.h"

namespace opgate::ops::draw_bounding_boxes {
namespace {

class Cpu : public Checked {
 public:
  Status prepare(const Node& node) {
    settings_ = Settings(node.attributes());
    return {};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const Rows rows = settings_.rows_of(in, settings_.names.letters.data(), settings_.names.ends.data());
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

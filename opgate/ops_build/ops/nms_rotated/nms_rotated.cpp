#include "nms_rotated.h"

#include "detection/greedy.h"
#include "detection/kept_rows.h"

namespace opgate::ops::nms_rotated {
namespace {

/// A picture whose anchors of equal label are a group.
struct Grouped : Picture {
  std::vector<std::int64_t> groups() const {
    if (!labels) return {};
    std::vector<std::int32_t> all(labels, labels + anchors);
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    std::vector<std::int64_t> found;
    for (std::int64_t i = 0; i < anchors; ++i)
      found.push_back(std::lower_bound(all.begin(), all.end(), labels[i]) - all.begin());
    return found;
  }
};

class Cpu : public Checked {
 public:
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    OPGATE_RETURN_IF_ERROR(check_labels(in));
    const Limits limits = limits_of(attributes);
    const bool clockwise = attributes.boolean("clockwise");
    const std::int64_t classes = in.size("c"), anchors = in.size("a");
    const auto* const boxes = in["boxes"].data<float>();
    const auto* const scores = in["scores"].data<float>();
    const auto* const labels = data_or_null<std::int32_t>(in, "box_labels");
    const auto rows = detection::KeptRows<5>::of(in, out, limits.max_detections);
    context.parallel_for(in.size("n"), 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        run_picture({{boxes + i * anchors * 5, scores + i * classes * anchors, labels ? labels + i * anchors : nullptr,
                      classes, anchors, clockwise}},
                    limits, rows, i);
      }
    });
    return {};
  }

 private:
  static void run_picture(const Grouped& picture, const Limits& limits, const detection::KeptRows<5>& rows,
                          std::int64_t i) {
    const auto kept = detection::suppress(picture, limits);
    const auto count = static_cast<std::int64_t>(kept.size());
    for (std::int64_t k = 0; k < count; ++k) {
      const auto& box = kept[static_cast<std::size_t>(k)];
      rows.write(i, k, box.anchor, picture.label_of(box.anchor, box.label), box.score);
    }
    for (std::int64_t k = count; k < rows.most; ++k) rows.clear(i, k);
    rows.count[i] = static_cast<std::int32_t>(count);
  }
};

}  // namespace
}  // namespace opgate::ops::nms_rotated

OPGATE_CPU_KERNEL(NMSRotated, opgate::ops::nms_rotated::Cpu)

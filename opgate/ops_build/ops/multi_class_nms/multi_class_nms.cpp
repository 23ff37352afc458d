#include "multi_class_nms.h"

#include "detection/greedy.h"
#include "detection/kept_rows.h"

namespace opgate::ops::multi_class_nms {
namespace {

class Cpu : public Checked {
 public:
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Limits limits = limits_of(attributes);
    const std::int64_t n = in.size("n"), classes = in.size("c"), anchors = in.size("a");
    const auto* const boxes = in["boxes"].data<float>();
    const auto* const scores = in["scores"].data<float>();
    const auto rows = detection::KeptRows<4>::of(in, out, limits.max_detections);
    context.parallel_for(n, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        run_picture({boxes + i * anchors * 4, scores + i * classes * anchors, classes, anchors}, limits, rows, i);
      }
    });
    return {};
  }

 private:
  static void run_picture(const Picture& picture, const Limits& limits, const detection::KeptRows<4>& rows,
                          std::int64_t i) {
    const auto kept = detection::suppress(picture, limits);
    const auto count = static_cast<std::int64_t>(kept.size());
    for (std::int64_t k = 0; k < count; ++k) {
      const auto& box = kept[static_cast<std::size_t>(k)];
      rows.write(i, k, box.anchor, static_cast<std::int32_t>(box.label), box.score);
    }
    for (std::int64_t k = count; k < rows.most; ++k) rows.clear(i, k);
    rows.count[i] = static_cast<std::int32_t>(count);
  }
};

}  // namespace
}  // namespace opgate::ops::multi_class_nms

OPGATE_CPU_KERNEL(MultiClassNMS, opgate::ops::multi_class_nms::Cpu)

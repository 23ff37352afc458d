#include "multi_class_nms.h"

#include "detection/greedy.h"

namespace opgate::ops::multi_class_nms {
namespace {

class Cpu : public Checked {
 public:
  Status prepare(const Node& node) {
    limits_ = limits_of(node.attributes());
    return {};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const std::int64_t n = in.size("n"), classes = in.size("c"), anchors = in.size("a");
    const auto* const boxes = in["boxes"].data<float>();
    const auto* const scores = in["scores"].data<float>();
    context.parallel_for(n, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        run_picture({boxes + i * anchors * 4, scores + i * classes * anchors, classes, anchors}, out, i);
      }
    });
    return {};
  }

 private:
  void run_picture(const Picture& picture, Outputs& out, std::int64_t i) const {
    const std::int64_t most = limits_.max_detections;
    float* const detections = out["detections"].data<float>() + i * most * 4;
    float* const scores = out["kept_scores"].data<float>() + i * most;
    auto* const labels = out["labels"].data<std::int32_t>() + i * most;
    auto* const indices = out.has("indices") ? out["indices"].data<std::int32_t>() + i * most : nullptr;
    const auto kept = detection::suppress(picture, limits_);
    const auto count = static_cast<std::int64_t>(kept.size());
    for (std::int64_t k = 0; k < count; ++k) {
      std::copy_n(picture.boxes + 4 * kept[k].anchor, 4, detections + 4 * k);
      scores[k] = kept[k].score;
      labels[k] = static_cast<std::int32_t>(kept[k].label);
      if (indices) indices[k] = static_cast<std::int32_t>(kept[k].anchor);
    }
    std::fill(detections + 4 * count, detections + 4 * most, 0.0f);
    std::fill(scores + count, scores + most, 0.0f);
    std::fill(labels + count, labels + most, -1);
    if (indices) std::fill(indices + count, indices + most, -1);
    out["count"].data<std::int32_t>()[i] = static_cast<std::int32_t>(count);
  }

  Limits limits_;
};

}  // namespace
}  // namespace opgate::ops::multi_class_nms

OPGATE_CPU_KERNEL(MultiClassNMS, opgate::ops::multi_class_nms::Cpu)

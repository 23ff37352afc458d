#include "nms_rotated.h"

#include "detection/greedy.h"

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
  Status prepare(const Node& node) {
    limits_ = limits_of(node.attributes());
    clockwise_ = node.attributes().boolean("clockwise");
    return {};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    OPGATE_RETURN_IF_ERROR(check_labels(in));
    const std::int64_t classes = in.size("c"), anchors = in.size("a");
    const auto* const boxes = in["boxes"].data<float>();
    const auto* const scores = in["scores"].data<float>();
    const auto* const labels = in.has("box_labels") ? in["box_labels"].data<std::int32_t>() : nullptr;
    context.parallel_for(in.size("n"), 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        run_picture({{boxes + i * anchors * 5, scores + i * classes * anchors, labels ? labels + i * anchors : nullptr,
                      classes, anchors, clockwise_}},
                    out, i);
      }
    });
    return {};
  }

 private:
  void run_picture(const Grouped& picture, Outputs& out, std::int64_t i) const {
    const std::int64_t most = limits_.max_detections;
    float* const detections = out["detections"].data<float>() + i * most * 5;
    float* const scores = out["kept_scores"].data<float>() + i * most;
    auto* const labels = out["labels"].data<std::int32_t>() + i * most;
    auto* const indices = out.has("indices") ? out["indices"].data<std::int32_t>() + i * most : nullptr;
    const auto kept = detection::suppress(picture, limits_);
    const auto count = static_cast<std::int64_t>(kept.size());
    for (std::int64_t k = 0; k < count; ++k) {
      std::copy_n(picture.boxes + 5 * kept[k].anchor, 5, detections + 5 * k);
      scores[k] = kept[k].score;
      labels[k] = picture.label_of(kept[k].anchor, kept[k].label);
      if (indices) indices[k] = static_cast<std::int32_t>(kept[k].anchor);
    }
    std::fill(detections + 5 * count, detections + 5 * most, 0.0f);
    std::fill(scores + count, scores + most, 0.0f);
    std::fill(labels + count, labels + most, -1);
    if (indices) std::fill(indices + count, indices + most, -1);
    out["count"].data<std::int32_t>()[i] = static_cast<std::int32_t>(count);
  }

  Limits limits_;
  bool clockwise_ = true;
};

}  // namespace
}  // namespace opgate::ops::nms_rotated

OPGATE_CPU_KERNEL(NMSRotated, opgate::ops::nms_rotated::Cpu)

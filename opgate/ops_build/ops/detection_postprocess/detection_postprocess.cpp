#include "detection_postprocess.h"

#include "detection/greedy.h"
#include "formula.h"

namespace opgate::ops::detection_postprocess {
namespace {

class Cpu : public Checked {
 public:
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Settings settings = Settings::of(attributes);
    const std::int64_t n = in.size("n");
    const auto [channels, anchors] = settings.head_size(in);
    const Head<T> first{in["head"].data<T>(), settings.classes_of(channels), anchors,         channels,
                        settings.first_class, settings.anchors_first,        settings.corners};
    const detection::Limits limits = settings.limits_of(in);
    const auto* const geometry = in.has("geometry") ? in["geometry"].data<float>() : nullptr;
    context.parallel_for(n, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        Head<T> head = first;
        head.values += i * head.channels * head.anchors;
        detection::Limits own = limits;
        own.iou_threshold = limits.iou_threshold_of(i);
        run_row(head, own, geometry ? geometry + 6 * i : nullptr, out, i);
      }
    });
    return {};
  }

 private:
  template <typename T>
  static void run_row(const Head<T>& head, const detection::Limits& limits, const float* geometry, Outputs& out,
                      std::int64_t i) {
    const std::int64_t most = limits.max_detections;
    float* boxes = out["boxes"].data<float>() + i * most * 4;
    float* scores = out["scores"].data<float>() + i * most;
    std::int32_t* labels = out["labels"].data<std::int32_t>() + i * most;
    std::int32_t* indices = data_or_null<std::int32_t>(out, "indices");
    if (indices) indices += i * most;
    const auto kept = detection::suppress(head, limits);
    const auto count = static_cast<std::int64_t>(kept.size());
    for (std::int64_t k = 0; k < count; ++k) {
      write_box(kept[k].box, geometry, boxes + 4 * k);
      scores[k] = kept[k].score;
      labels[k] = static_cast<std::int32_t>(kept[k].label);
      if (indices) indices[k] = static_cast<std::int32_t>(kept[k].anchor);
    }
    std::fill(boxes + 4 * count, boxes + 4 * most, 0.0f);
    std::fill(scores + count, scores + most, 0.0f);
    std::fill(labels + count, labels + most, -1);
    if (indices) std::fill(indices + count, indices + most, -1);
    out["count"].data<std::int32_t>()[i] = static_cast<std::int32_t>(count);
  }
};

}  // namespace
}  // namespace opgate::ops::detection_postprocess

OPGATE_CPU_KERNEL(DetectionPostprocess, opgate::ops::detection_postprocess::Cpu)

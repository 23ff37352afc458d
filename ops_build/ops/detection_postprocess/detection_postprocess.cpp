#include "detection_postprocess.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "formula.h"

namespace opgate::ops::detection_postprocess {
namespace {

std::vector<Candidate> candidates_of(const Head& head, float threshold) {
  constexpr std::int64_t kBlock = 64;
  std::vector<Candidate> found;
  for (std::int64_t label = 0; label < head.classes; ++label) {
    const float* row = head.values + (4 + label) * head.anchors;
    for (std::int64_t begin = 0; begin < head.anchors; begin += kBlock) {
      const std::int64_t end = std::min(begin + kBlock, head.anchors);
      // Nearly all blocks have no candidate, which one vectorized loop finds out.
      int passed = 0;
      for (std::int64_t i = begin; i < end; ++i) passed |= row[i] > threshold;
      if (!passed) continue;
      for (std::int64_t i = begin; i < end; ++i) {
        if (row[i] > threshold)
          found.push_back(candidate(row[i], static_cast<std::uint32_t>(i * head.classes + label)));
      }
    }
  }
  return found;
}

/// The boxes that were kept in one class.
class KeptBoxes {
 public:
  void add(const Box& box) {
    const Outer outer(box);
    boxes_.push_back(box);
    x1_.push_back(outer.x1);
    y1_.push_back(outer.y1);
    x2_.push_back(outer.x2);
    y2_.push_back(outer.y2);
  }

  /// Whether the IoU of the box with one of them is greater than `threshold`.
  bool suppress(const Box& box, double threshold) const {
    constexpr std::size_t kBlock = 16;
    const Outer outer(box);
    for (std::size_t begin = 0; begin < boxes_.size(); begin += kBlock) {
      const std::size_t end = std::min(begin + kBlock, boxes_.size());
      // Nearly all boxes are elsewhere, which one vectorized loop over a block of them finds out.
      int met = 0;
      for (std::size_t i = begin; i < end; ++i) met |= meets(outer, i);
      if (!met) continue;
      for (std::size_t i = begin; i < end; ++i) {
        if (meets(outer, i) && iou(boxes_[i], box) > threshold) return true;
      }
    }
    return false;
  }

 private:
  /// A box in floats around the box: boxes that don't meet in floats have an IoU of 0.
  struct Outer {
    float x1, y1, x2, y2;

    explicit Outer(const Box& box) : x1(below(box.x1)), y1(below(box.y1)), x2(above(box.x2)), y2(above(box.y2)) {}

    static constexpr float kInfinity = std::numeric_limits<float>::infinity();
    static float below(double value) { return std::nextafter(static_cast<float>(value), -kInfinity); }
    static float above(double value) { return std::nextafter(static_cast<float>(value), kInfinity); }
  };

  int meets(const Outer& outer, std::size_t i) const {
    return (x1_[i] < outer.x2) & (x2_[i] > outer.x1) & (y1_[i] < outer.y2) & (y2_[i] > outer.y1);
  }

  std::vector<Box> boxes_;
  std::vector<float> x1_, y1_, x2_, y2_;
};

struct Kept {
  Box box;
  std::int64_t label;
  float score;
};

/// Greedy NMS in each class, over all candidates in their order. This is also the order of the output, so it stops at
/// the last wanted detection. For this reason the candidates are sorted chunk by chunk.
std::vector<Kept> suppress(const Head& head, const Settings& settings, std::vector<Candidate> candidates) {
  std::vector<Kept> kept;
  std::vector<KeptBoxes> by_class(static_cast<std::size_t>(head.classes));
  std::size_t sorted = 0;
  for (std::size_t next = 0; next < candidates.size(); ++next) {
    if (static_cast<std::int64_t>(kept.size()) == settings.max_detections) break;
    if (next == sorted) {
      sorted = std::min(candidates.size(), 2 * sorted + 512);
      const auto end = candidates.begin() + static_cast<std::ptrdiff_t>(sorted);
      const auto begin = candidates.begin() + static_cast<std::ptrdiff_t>(next);
      if (end != candidates.end()) std::nth_element(begin, end, candidates.end());
      std::sort(begin, end);
    }
    const std::int64_t anchor = index_of(candidates[next]) / head.classes;
    const std::int64_t label = index_of(candidates[next]) % head.classes;
    const Box box = head.box(anchor, settings.corners);
    KeptBoxes& others = by_class[static_cast<std::size_t>(label)];
    if (others.suppress(box, settings.iou_threshold)) continue;
    others.add(box);
    kept.push_back({box, label, head.probability(anchor, label)});
  }
  return kept;
}

class Cpu : public Checked {
 public:
  Status prepare(const Node& node) {
    settings_ = Settings::of(node.attributes());
    return {};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const std::int64_t n = in.size("n"), channels = in.size("c"), anchors = in.size("a");
    const auto* const head = in["head"].data<float>();
    const auto* const geometry = in.has("geometry") ? in["geometry"].data<float>() : nullptr;
    context.parallel_for(n, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        run_row({head + i * channels * anchors, channels - 4, anchors}, settings_,
                geometry ? geometry + 6 * i : nullptr, out, i);
      }
    });
    return {};
  }

 private:
  static void run_row(const Head& head, const Settings& settings, const float* geometry, Outputs& out, std::int64_t i) {
    const std::int64_t most = settings.max_detections;
    float* boxes = out["boxes"].data<float>() + i * most * 4;
    float* scores = out["scores"].data<float>() + i * most;
    std::int32_t* labels = out["labels"].data<std::int32_t>() + i * most;
    std::vector<Kept> kept;
    if (most > 0) kept = suppress(head, settings, candidates_of(head, settings.score_threshold));
    const auto count = static_cast<std::int64_t>(kept.size());
    for (std::int64_t k = 0; k < count; ++k) {
      write_box(kept[k].box, geometry, boxes + 4 * k);
      scores[k] = kept[k].score;
      labels[k] = static_cast<std::int32_t>(kept[k].label);
    }
    std::fill(boxes + 4 * count, boxes + 4 * most, 0.0f);
    std::fill(scores + count, scores + most, 0.0f);
    std::fill(labels + count, labels + most, -1);
    out["count"].data<std::int32_t>()[i] = static_cast<std::int32_t>(count);
  }

  Settings settings_;
};

}  // namespace
}  // namespace opgate::ops::detection_postprocess

OPGATE_CPU_KERNEL(DetectionPostprocess, opgate::ops::detection_postprocess::Cpu)

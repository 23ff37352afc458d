#include "detection_postprocess.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace opgate::ops {
namespace {

struct Settings {
  float score_threshold;
  double iou_threshold;
  std::int64_t max_detections;
  bool corners;  ///< boxes come as x1 y1 x2 y2
};

struct Box {
  double x1, y1, x2, y2, area;
};

/// An anchor and a class whose probability passed, as one number: the best is the smallest. In the upper half the
/// score, descending; in the lower anchor * classes + class, ascending.
using Candidate = std::uint64_t;

Candidate candidate(float score, std::uint32_t place) {
  // Adding 0 makes -0 equal to 0. Of two floats the greater has the greater key.
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0f);
  const std::uint32_t key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<Candidate>(~key) << 32 | place;
}

std::uint32_t place_of(Candidate candidate) { return static_cast<std::uint32_t>(candidate); }

/// One row of the batch.
struct Head {
  const float* values;
  std::int64_t classes, anchors;

  float probability(std::int64_t anchor, std::int64_t label) const { return values[(4 + label) * anchors + anchor]; }

  Box box(std::int64_t anchor, bool corners) const {
    const double a = values[anchor], b = values[anchors + anchor];
    const double c = values[2 * anchors + anchor], d = values[3 * anchors + anchor];
    Box box = corners ? Box{a, b, c, d, 0} : Box{a - c / 2, b - d / 2, a + c / 2, b + d / 2, 0};
    box.area = extent(box.x1, box.x2) * extent(box.y1, box.y2);
    return box;
  }

  /// max(0, to - from), NaN where either is NaN.
  static double extent(double from, double to) { return to - from < 0 ? 0 : to - from; }
};

/// Intersection over union; 0 for an empty union, and false in every comparison (NaN) for boxes that aren't finite.
double iou(const Box& a, const Box& b) {
  const double shared = Head::extent(std::max(a.x1, b.x1), std::min(a.x2, b.x2)) *
                        Head::extent(std::max(a.y1, b.y1), std::min(a.y2, b.y2));
  const double all = a.area + b.area - shared;
  return all == 0 ? 0 : shared / all;
}

std::vector<Candidate> candidates_of(const Head& head, float threshold) {
  constexpr std::int64_t kBlock = 64;
  std::vector<Candidate> found;
  for (std::int64_t label = 0; label < head.classes; ++label) {
    const float* row = head.values + (4 + label) * head.anchors;
    for (std::int64_t begin = 0; begin < head.anchors; begin += kBlock) {
      const std::int64_t end = std::min(begin + kBlock, head.anchors);
      // Nearly all blocks hold nothing: one vectorized look at each.
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

/// The boxes kept in one class.
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

  /// Whether the IoU with one of them is greater than `threshold`.
  bool suppress(const Box& box, double threshold) const {
    constexpr std::size_t kBlock = 16;
    const Outer outer(box);
    for (std::size_t begin = 0; begin < boxes_.size(); begin += kBlock) {
      const std::size_t end = std::min(begin + kBlock, boxes_.size());
      // Nearly all boxes lie elsewhere: one vectorized look at a block of them.
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
  /// Floats around a box: what doesn't meet here shares nothing, and its IoU is 0.
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

/// Greedy NMS in each class, over all candidates in order. Since the order is that of the output, it may end with the
/// last detection that is asked for; and so only as much of the order is made as is needed, a chunk at a time.
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
    const std::int64_t anchor = place_of(candidates[next]) / head.classes;
    const std::int64_t label = place_of(candidates[next]) % head.classes;
    const Box box = head.box(anchor, settings.corners);
    KeptBoxes& others = by_class[static_cast<std::size_t>(label)];
    if (others.suppress(box, settings.iou_threshold)) continue;
    others.add(box);
    kept.push_back({box, label, head.probability(anchor, label)});
  }
  return kept;
}

/// Model pixels to source pixels, where ImagePreprocess has told how.
void write_box(const Box& box, const float* geometry, float* out) {
  const double corners[4] = {box.x1, box.y1, box.x2, box.y2};
  for (int i = 0; i < 4; ++i) {
    double value = corners[i];
    if (geometry) {
      const int axis = i % 2;
      value = (value - geometry[2 + axis]) * geometry[axis];
      const double most = geometry[4 + axis];
      value = value < 0 ? 0 : value > most ? most : value;
    }
    out[i] = static_cast<float>(value);
  }
}

Status read_settings(const Attributes& attributes, Settings& settings) {
  const auto wrong = [](const std::string& name, const std::string& expected, const std::string& got) {
    return Status::invalid("attribute '" + name + "': expected " + expected + ", got " + got);
  };
  settings.score_threshold = static_cast<float>(attributes.number("score_threshold"));
  settings.iou_threshold = static_cast<float>(attributes.number("iou_threshold"));
  settings.max_detections = attributes.integer("max_detections");
  settings.corners = attributes.text("box_format") == "xyxy";
  if (std::isnan(settings.score_threshold)) return wrong("score_threshold", "a number", "nan");
  if (!(settings.iou_threshold >= 0 && settings.iou_threshold <= 1)) {
    return wrong("iou_threshold", "0..1", std::to_string(settings.iou_threshold));
  }
  if (settings.max_detections < 0) return wrong("max_detections", "0 or more", std::to_string(settings.max_detections));
  return {};
}

struct DetectionPostprocessCpu {
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    Settings settings;
    OPGATE_RETURN_IF_ERROR(read_settings(attributes, settings));
    const std::int64_t n = in.size("n"), channels = in.size("c"), anchors = in.size("a");
    if (channels < 4) {
      return Status::invalid(
          "input 'head': expected f32[n,c,a] with c >= 4 (four box channels, then one a class), got c = " +
          std::to_string(channels));
    }
    if ((channels - 4) * anchors > std::numeric_limits<std::uint32_t>::max()) {
      return Status::invalid("input 'head': expected fewer than 2^32 probabilities a row, got " +
                             std::to_string((channels - 4) * anchors));
    }
    const auto* const head = in["head"].data<const float>();
    const auto* const geometry = in.has("geometry") ? in["geometry"].data<const float>() : nullptr;
    context.parallel_for(n, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        run_row({head + i * channels * anchors, channels - 4, anchors}, settings, geometry ? geometry + 6 * i : nullptr,
                out, i);
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
};

}  // namespace
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(DetectionPostprocess, opgate::ops::DetectionPostprocessCpu)

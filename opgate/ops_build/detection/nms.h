// What non-maximum suppression uses on every device: boxes, their overlap, candidates and their order.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "signature/dtype.h"

namespace opgate::detection {

/// Corners and area. Ops compute in f64 from f32 corners.
struct Box {
  double x1, y1, x2, y2, area;
};

/// max(0, to - from). NaN if either is NaN.
OPGATE_HOST_DEVICE inline double extent(double from, double to) { return to - from < 0 ? 0 : to - from; }

OPGATE_HOST_DEVICE inline Box box_of(double x1, double y1, double x2, double y2) {
  return {x1, y1, x2, y2, extent(x1, x2) * extent(y1, y2)};
}

/// Intersection over union. 0 for an empty union. NaN, which is less and greater than nothing, for boxes that aren't
/// finite.
OPGATE_HOST_DEVICE inline double iou(const Box& a, const Box& b) {
  const double shared = extent(a.x1 < b.x1 ? b.x1 : a.x1, b.x2 < a.x2 ? b.x2 : a.x2) *
                        extent(a.y1 < b.y1 ? b.y1 : a.y1, b.y2 < a.y2 ? b.y2 : a.y2);
  const double all = a.area + b.area - shared;
  return all == 0 ? 0 : shared / all;
}

/// A box in floats around the box: boxes that don't meet in floats have an IoU of 0.
struct Outer {
  float x1, y1, x2, y2;

  Outer() = default;
  template <typename AnyBox>
  OPGATE_HOST_DEVICE explicit Outer(const AnyBox& box)
      : x1(nextafterf(static_cast<float>(box.x1), -INFINITY)),
        y1(nextafterf(static_cast<float>(box.y1), -INFINITY)),
        x2(nextafterf(static_cast<float>(box.x2), INFINITY)),
        y2(nextafterf(static_cast<float>(box.y2), INFINITY)) {}

  OPGATE_HOST_DEVICE bool meets(const Outer& other) const {
    return x1 < other.x2 && x2 > other.x1 && y1 < other.y2 && y2 > other.y1;
  }
};

/// Whether an IoU is greater than a threshold, as far as floats can say it.
enum class Verdict { not_greater, greater, unknown };

OPGATE_HOST_DEVICE inline Outer rounded(const Box& box) { return Outer(box); }

/// An anchor and a class with a score over the threshold, as one number. The best candidate is the smallest number. The
/// upper half orders by descending score, the lower half is anchor * classes + class.
using Candidate = std::uint64_t;

OPGATE_HOST_DEVICE inline Candidate candidate(float score, std::uint32_t index) {
  const float positive_zero = score + 0.0f;  // -0 becomes 0
  std::uint32_t bits;
  std::memcpy(&bits, &positive_zero, sizeof bits);  // nvcc's std::bit_cast is a host function
  // The key of a greater float is greater.
  const std::uint32_t key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<Candidate>(~key) << 32 | index;
}

OPGATE_HOST_DEVICE inline std::uint32_t index_of(Candidate candidate) { return static_cast<std::uint32_t>(candidate); }

/// The scores of a picture, in lines of neighbouring values whose begins are `pitch` values apart. A line has the
/// scores of a class, or of an anchor. If there are weights, one an anchor, each score is multiplied by its anchor's.
template <typename T>
struct Scores {
  const T* values;
  std::int64_t lines, length, pitch;
  bool by_anchor;
  const T* weights = nullptr;
  std::int64_t weight_step = 1;

  const T* line(std::int64_t i) const { return values + i * pitch; }

  float weight(std::int64_t anchor) const { return static_cast<float>(weights[anchor * weight_step]); }

  float of(std::int64_t anchor, std::int64_t label) const {
    const T score = by_anchor ? values[anchor * pitch + label] : values[label * pitch + anchor];
    return weights ? static_cast<float>(score) * weight(anchor) : static_cast<float>(score);
  }
};

/// What is kept of the candidates of one picture.
struct Limits {
  float score_threshold = 0;  ///< a candidate's score is greater
  double iou_threshold = 0;   ///< a greater IoU with a kept box suppresses
  std::int64_t max_detections = 0;
  std::int64_t max_per_class = 0;         ///< at least max_detections: no limit
  bool class_agnostic = false;            ///< boxes suppress those of all classes
  const float* iou_thresholds = nullptr;  ///< in place of iou_threshold that of each picture, or null

  OPGATE_HOST_DEVICE double iou_threshold_of(std::int64_t picture) const {
    return iou_thresholds ? static_cast<double>(iou_thresholds[picture]) : iou_threshold;
  }
};

}  // namespace opgate::detection

// Rotated boxes and their overlap, for every device.
#pragma once

#include <cmath>

#include "nms.h"

namespace opgate::detection {

/// A rectangle: its centre, its sides, and the direction of the first side.
template <typename C>
struct Rectangle {
  C x, y, width, height, cosine, sine;
};

/// The corners x1 y1 x2 y2 are those of the upright box around the rectangle.
struct RotatedBox : Rectangle<double> {
  double x1, y1, x2, y2, area;
};

/// `box` has the centre x, y, the sides, which count as 0 if they are negative, and the angle in radians. A positive
/// angle turns the x axis to the y axis (clockwise in a picture, whose y axis points down) if `clockwise`. A box that
/// isn't finite meets no other.
OPGATE_HOST_DEVICE inline RotatedBox rotated_box_of(const float* box, bool clockwise) {
  RotatedBox result{};
  result.x = box[0];
  result.y = box[1];
  result.width = extent(0, box[2]);
  result.height = extent(0, box[3]);
  result.area = result.width * result.height;
  const double angle = clockwise ? box[4] : -box[4];
  result.cosine = cos(angle);
  result.sine = sin(angle);
  const double across = (fabs(result.cosine) * result.width + fabs(result.sine) * result.height) / 2;
  const double down = (fabs(result.sine) * result.width + fabs(result.cosine) * result.height) / 2;
  const double sides = static_cast<double>(box[2]) + static_cast<double>(box[3]);
  const double zero = 0 * (across + down + result.x + result.y + sides);  // NaN if the box isn't finite
  result.x1 = result.x - across + zero;
  result.x2 = result.x + across + zero;
  result.y1 = result.y - down + zero;
  result.y2 = result.y + down + zero;
  return result;
}

/// A convex polygon. A rectangle that is cut four times has at most eight corners.
template <typename C>
struct Polygon {
  static constexpr int kMost = 8;
  C x[kMost], y[kMost];
  int count = 0;
  bool lost = false;  ///< rounding has made more corners

  OPGATE_HOST_DEVICE void add(C at_x, C at_y) {
    if (count == kMost) {
      lost = true;
      return;
    }
    x[count] = at_x;
    y[count++] = at_y;
  }
};

/// The part of a polygon where sign * x <= limit, or sign * y <= limit.
template <typename C>
OPGATE_HOST_DEVICE Polygon<C> cut(const Polygon<C>& from, bool is_x, C sign, C limit) {
  Polygon<C> to;
  to.lost = from.lost;
  for (int i = 0; i < from.count; ++i) {
    const int next = i + 1 < from.count ? i + 1 : 0;
    const C here = limit - sign * (is_x ? from.x[i] : from.y[i]);
    const C there = limit - sign * (is_x ? from.x[next] : from.y[next]);
    if (here >= 0) to.add(from.x[i], from.y[i]);
    if ((here < 0) != (there < 0)) {
      const C part = here / (here - there);
      to.add(from.x[i] + (from.x[next] - from.x[i]) * part, from.y[i] + (from.y[next] - from.y[i]) * part);
    }
  }
  return to;
}

/// The area that both boxes have. The corners of `a` are turned to where `b` is upright and around the origin, and the
/// four sides of `b` cut them (the algorithm of Sutherland and Hodgman). In floats it is NaN if corners are lost.
/// Inlined it would take too many registers of a GPU.
template <typename C>
[[gnu::noinline]] OPGATE_HOST_DEVICE C shared_area(const Rectangle<C>& a, const Rectangle<C>& b) {
  const C dx = a.x - b.x, dy = a.y - b.y;
  const C x = dx * b.cosine + dy * b.sine, y = dy * b.cosine - dx * b.sine;
  const C cosine = a.cosine * b.cosine + a.sine * b.sine, sine = a.sine * b.cosine - a.cosine * b.sine;
  const C wx = cosine * a.width / 2, wy = sine * a.width / 2;
  const C hx = -sine * a.height / 2, hy = cosine * a.height / 2;
  Polygon<C> polygon;
  polygon.add(x - wx - hx, y - wy - hy);
  polygon.add(x + wx - hx, y + wy - hy);
  polygon.add(x + wx + hx, y + wy + hy);
  polygon.add(x - wx + hx, y - wy + hy);
  for (int side = 0; side < 4; ++side)
    polygon = cut<C>(polygon, side < 2, side % 2 ? -1 : 1, (side < 2 ? b.width : b.height) / 2);
  C twice = 0;
  for (int i = 1; i + 1 < polygon.count; ++i) {
    twice += (polygon.x[i] - polygon.x[0]) * (polygon.y[i + 1] - polygon.y[0]) -
             (polygon.y[i] - polygon.y[0]) * (polygon.x[i + 1] - polygon.x[0]);
  }
  if (sizeof(C) == sizeof(float) && polygon.lost) return static_cast<C>(NAN);
  return twice > 0 ? twice / 2 : 0;
}

/// Intersection over union. 0 for an empty union, for boxes without an area, and for those that aren't finite.
OPGATE_HOST_DEVICE inline double iou(const RotatedBox& a, const RotatedBox& b) {
  if (!(a.x1 < b.x2 && b.x1 < a.x2 && a.y1 < b.y2 && b.y1 < a.y2)) return 0;
  // What is rounded is no area of a box without one.
  double shared = shared_area<double>(a, b);
  shared = shared < a.area ? shared : a.area;
  shared = shared < b.area ? shared : b.area;
  const double all = a.area + b.area - shared;
  return all > 0 ? shared / all : 0;
}

/// A rotated box in floats. Nearly always it decides, and f64 is slow on most GPUs.
struct RoundedBox : Rectangle<float> {
  RoundedBox() = default;
  OPGATE_HOST_DEVICE explicit RoundedBox(const RotatedBox& box)
      : Rectangle<float>{static_cast<float>(box.x),      static_cast<float>(box.y),      static_cast<float>(box.width),
                         static_cast<float>(box.height), static_cast<float>(box.cosine), static_cast<float>(box.sine)} {
  }

  /// Half of the width or the height of the upright box around this one, and more than rounding takes from it.
  OPGATE_HOST_DEVICE float across() const {
    return (fabsf(cosine) * width + fabsf(sine) * height) * 0.50001f + 0x1p-126f;
  }
  OPGATE_HOST_DEVICE float down() const {
    return (fabsf(sine) * width + fabsf(cosine) * height) * 0.50001f + 0x1p-126f;
  }

  /// Boxes that don't meet have an IoU of 0. The differences of the centres have one rounding, as those of f64 have.
  OPGATE_HOST_DEVICE bool meets(const RoundedBox& other) const {
    return !(fabsf(x - other.x) > across() + other.across()) && !(fabsf(y - other.y) > down() + other.down());
  }

  /// Decides about iou(kept, this box) in f64.
  ///
  /// Let u = 2^-24, s the sum of the sides of `kept`, and r that of all sides and of the distance of the centres along
  /// both axes. Rounding moves a corner of `kept`, as this box sees it, by less than 12.1 u r. A cut knows exactly on
  /// which side of the line a corner is, because a difference of floats has the right sign. A new corner is wrong by
  /// less than 9.9 u r, however flat the edge meets the line: `here` and `there` have different signs, and each has a
  /// relative error of u. So each of these five steps moves corners by less than e = 16 u r. It changes the area by
  /// less than e times the length of all edges, 2 e (s + 44 e), and a later cut makes no difference of areas greater.
  /// The sum of the triangles is wrong by less than 2 e (s + 10 e). Together that is less than 16 e (s + 64 e), with
  /// room for the error of f64.
  ///
  /// This holds while nothing overflows, while what underflows is far less than the bound, and while the boxes are so
  /// near the origin that f64 knows the ends of the upright boxes around them.
  OPGATE_HOST_DEVICE Verdict compare(const RoundedBox& kept, float threshold) const {
    const float sides = kept.width + kept.height;
    const float r = fabsf(kept.x - x) + fabsf(kept.y - y) + sides + width + height;
    const float kept_area = kept.width * kept.height, area = width * height, sum = kept_area + area;
    const bool near = fabsf(x) + fabsf(y) < 0x1p30f * r;
    if (!(r < 1e15f && sum > 1e-30f && near)) return Verdict::unknown;
    float shared = shared_area<float>(kept, *this);
    if (kept_area < shared) shared = kept_area;
    if (area < shared) shared = area;
    // iou > threshold: shared / (sum - shared) > threshold
    constexpr float u = 0x1p-24f;
    const float e = 16 * u * r, error = 16 * e * (sides + 64 * e);
    const float over = shared * (1 + threshold) - threshold * sum, margin = 2 * error + 16 * u * sum;
    return over > margin ? Verdict::greater : over < -margin ? Verdict::not_greater : Verdict::unknown;
  }
};

OPGATE_HOST_DEVICE inline RoundedBox rounded(const RotatedBox& box) { return RoundedBox(box); }

}  // namespace opgate::detection

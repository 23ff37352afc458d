// Rotated boxes and their overlap, for every device.
#pragma once

#include <cmath>

#include "nms.h"

namespace opgate::detection {

/// A rectangle: its centre, its sides, and the direction of the first side. The corners x1 y1 x2 y2 are those of the
/// upright box around it.
struct RotatedBox {
  double x1, y1, x2, y2, area;
  double x, y, width, height, cosine, sine;
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
struct Polygon {
  static constexpr int kMost = 8;
  double x[kMost], y[kMost];
  int count;
};

/// The part of a polygon where sign * x <= limit, or sign * y <= limit.
OPGATE_HOST_DEVICE inline Polygon cut(const Polygon& from, bool is_x, double sign, double limit) {
  Polygon to;
  to.count = 0;
  for (int i = 0; i < from.count; ++i) {
    const int next = i + 1 < from.count ? i + 1 : 0;
    const double here = limit - sign * (is_x ? from.x[i] : from.y[i]);
    const double there = limit - sign * (is_x ? from.x[next] : from.y[next]);
    if (here >= 0 && to.count < Polygon::kMost) {
      to.x[to.count] = from.x[i];
      to.y[to.count++] = from.y[i];
    }
    if ((here < 0) != (there < 0) && to.count < Polygon::kMost) {
      const double part = here / (here - there);
      to.x[to.count] = from.x[i] + (from.x[next] - from.x[i]) * part;
      to.y[to.count++] = from.y[i] + (from.y[next] - from.y[i]) * part;
    }
  }
  return to;
}

/// The area that both boxes have. The corners of `a` are turned to where `b` is upright and around the origin, and the
/// four sides of `b` cut them (the algorithm of Sutherland and Hodgman). Inlined it would take too many registers of a
/// GPU.
[[gnu::noinline]] OPGATE_HOST_DEVICE inline double shared_area(const RotatedBox& a, const RotatedBox& b) {
  const double dx = a.x - b.x, dy = a.y - b.y;
  const double x = dx * b.cosine + dy * b.sine, y = dy * b.cosine - dx * b.sine;
  const double cosine = a.cosine * b.cosine + a.sine * b.sine, sine = a.sine * b.cosine - a.cosine * b.sine;
  const double wx = cosine * a.width / 2, wy = sine * a.width / 2;
  const double hx = -sine * a.height / 2, hy = cosine * a.height / 2;
  Polygon polygon{
      {x - wx - hx, x + wx - hx, x + wx + hx, x - wx + hx}, {y - wy - hy, y + wy - hy, y + wy + hy, y - wy + hy}, 4};
  for (int side = 0; side < 4; ++side)
    polygon = cut(polygon, side < 2, side % 2 ? -1 : 1, (side < 2 ? b.width : b.height) / 2);
  double twice = 0;
  for (int i = 1; i + 1 < polygon.count; ++i) {
    twice += (polygon.x[i] - polygon.x[0]) * (polygon.y[i + 1] - polygon.y[0]) -
             (polygon.y[i] - polygon.y[0]) * (polygon.x[i + 1] - polygon.x[0]);
  }
  return twice > 0 ? twice / 2 : 0;
}

/// Intersection over union. 0 for an empty union, for boxes without an area, and for those that aren't finite.
OPGATE_HOST_DEVICE inline double iou(const RotatedBox& a, const RotatedBox& b) {
  if (!(a.x1 < b.x2 && b.x1 < a.x2 && a.y1 < b.y2 && b.y1 < a.y2)) return 0;
  // What is rounded is no area of a box without one.
  double shared = shared_area(a, b);
  shared = shared < a.area ? shared : a.area;
  shared = shared < b.area ? shared : b.area;
  const double all = a.area + b.area - shared;
  return all > 0 ? shared / all : 0;
}

}  // namespace opgate::detection

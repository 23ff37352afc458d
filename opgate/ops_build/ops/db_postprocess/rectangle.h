// The rectangle of the least area around a region.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <span>
#include <vector>

#include "regions.h"

namespace opgate::ops::db_postprocess {

/// The centre of a pixel.
struct Point {
  std::int64_t x, y;
};

/// The corners of the convex hull of a region, from its first pixel on, clockwise in a picture whose y goes down. Three
/// of them are never in a line.
inline std::vector<Point> hull_of(std::span<const Run> runs) {
  std::vector<Point> points;  // the ends of each row
  for (std::size_t i = 0; i < runs.size();) {
    const Run& run = runs[i];
    std::int32_t last = run.last;
    for (; i < runs.size() && runs[i].row == run.row; ++i) last = runs[i].last;
    points.push_back({run.first, run.row});
    if (last > run.first) points.push_back({last, run.row});
  }
  std::vector<Point> hull;
  const auto add = [&](const Point& point, std::size_t begin) {
    while (hull.size() > begin + 1) {
      const Point &a = hull[hull.size() - 2], &b = hull.back();
      if ((b.x - a.x) * (point.y - a.y) - (b.y - a.y) * (point.x - a.x) > 0) break;
      hull.pop_back();
    }
    hull.push_back(point);
  };
  for (const Point& point : points) add(point, 0);  // down the right side
  const std::size_t lowest = hull.size() - 1;
  for (std::size_t i = points.size() - 1; i-- > 0;) add(points[i], lowest);  // and up the left one
  if (hull.size() > 1) hull.pop_back();
  return hull;
}

/// All (x, y) with p = dx x + dy y within p_least .. p_most and q = dx y - dy x within q_least .. q_most. The vector
/// (dx, dy) is as long as `length`.
struct Rectangle {
  std::int64_t dx = 0, dy = 0, p_least = 0, p_most = 0, q_least = 0, q_most = 0;

  double length_squared() const { return static_cast<double>(dx * dx + dy * dy); }
  double length() const { return std::sqrt(length_squared()); }
  double width() const { return static_cast<double>(p_most - p_least) / length(); }
  double height() const { return static_cast<double>(q_most - q_least) / length(); }

  double area() const {
    return static_cast<double>(p_most - p_least) * static_cast<double>(q_most - q_least) / length_squared();
  }

  /// The pixels of a row whose centres are within, or that a side passes through: [first, last], empty if first > last.
  /// A side has one pixel of each column or row, as if it were drawn.
  struct Columns {
    std::int64_t first, last;
  };
  Columns columns(std::int64_t y, std::int64_t picture_width) const {
    Columns columns{0, picture_width - 1};
    const std::int64_t drawn = std::max(std::abs(dx), std::abs(dy));
    within(2 * dx, 2 * (p_least - dy * y) - drawn, 2 * (p_most - dy * y) + drawn, columns);
    within(-2 * dy, 2 * (q_least - dx * y) - drawn, 2 * (q_most - dx * y) + drawn, columns);
    return columns;
  }

  /// The least and the greatest y.
  struct Rows {
    double first, last;
  };
  Rows rows() const {
    const auto y = [&](std::int64_t p, std::int64_t q) {
      return static_cast<double>(dy) * static_cast<double>(p) + static_cast<double>(dx) * static_cast<double>(q);
    };
    const auto [least, most] =
        std::minmax({y(p_least, q_least), y(p_least, q_most), y(p_most, q_least), y(p_most, q_most)});
    return {least / length_squared(), most / length_squared()};
  }

 private:
  static std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

  /// Leaves those x for which least <= factor x <= most.
  static void within(std::int64_t factor, std::int64_t least, std::int64_t most, Columns& columns) {
    if (factor == 0) {
      if (least > 0 || most < 0) columns.last = columns.first - 1;
      return;
    }
    if (factor < 0) std::swap(least, most);
    columns.first = std::max(columns.first, -floor_div(-least, factor));
    columns.last = std::min(columns.last, floor_div(most, factor));
  }
};

/// The rectangle along one side of the hull that has the least area, the first of equal ones.
inline Rectangle least_rectangle(std::span<const Point> hull) {
  Rectangle best;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < hull.size() && hull.size() > 2; ++i) {
    const Point &from = hull[i], &to = hull[(i + 1) % hull.size()];
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    Rectangle rectangle{to.x - from.x, to.y - from.y, kMost, -kMost, kMost, -kMost};
    for (const Point& point : hull) {
      const std::int64_t p = rectangle.dx * point.x + rectangle.dy * point.y;
      const std::int64_t q = rectangle.dx * point.y - rectangle.dy * point.x;
      rectangle.p_least = std::min(rectangle.p_least, p);
      rectangle.p_most = std::max(rectangle.p_most, p);
      rectangle.q_least = std::min(rectangle.q_least, q);
      rectangle.q_most = std::max(rectangle.q_most, q);
    }
    if (const double area = rectangle.area(); area < least) {
      least = area;
      best = rectangle;
    }
  }
  return best;
}

}  // namespace opgate::ops::db_postprocess

// Where the pixels of an upright crop lie in the picture.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace opgate::ops::perspective_crop {

/// From a pixel x, y of a crop that is `width` wide to its place in the picture. The width is 0 if there is no crop.
struct QuadMap {
  /// x, y and the divisor at a place are sums with these factors of x, y and 1.
  std::array<std::array<double, 3>, 3> factors{};
  std::int64_t width = 0;

  struct Place {
    double x, y;
  };
  Place at(double x, double y) const {
    const auto value = [&](int i) { return factors[i][0] * x + factors[i][1] * y + factors[i][2]; };
    const double divisor = value(2);
    return {value(0) / divisor, value(1) / divisor};
  }

  /// The map of the corners x y of a quad: top left, top right, bottom right, bottom left.
  static QuadMap of(const float* quad, std::int64_t height, std::int64_t most, double rotate_from) {
    std::array<double, 4> x, y;
    for (std::size_t i = 0; i < 4; ++i) {
      x[i] = quad[2 * i];
      y[i] = quad[2 * i + 1];
    }
    const auto side = [&](std::size_t a, std::size_t b) { return std::hypot(x[a] - x[b], y[a] - y[b]); };
    const double w = std::max(side(0, 1), side(2, 3)), h = std::max(side(0, 3), side(1, 2));
    const double determinant = (x[1] - x[2]) * (y[3] - y[2]) - (x[3] - x[2]) * (y[1] - y[2]);
    if (!(w > 0 && h > 0 && std::isfinite(w) && std::isfinite(h)) || determinant == 0) return {};
    QuadMap map;
    const bool rotated = h / w >= rotate_from;
    const double wanted = std::ceil(static_cast<double>(height) * (rotated ? h / w : w / h));
    map.width = wanted < static_cast<double>(most) ? std::max<std::int64_t>(1, std::int64_t(wanted)) : most;
    // A crop has whole pixels of size 1 first, with w columns and h rows. It is turned, and then resized.
    const double across = (rotated ? h : w) / static_cast<double>(map.width);
    const double down = (rotated ? w : h) / static_cast<double>(height);
    // From the pixel to s = column / w and t = row / h, by the factors of x, y and 1.
    const std::array<double, 3> s = rotated ? std::array{0.0, -down / w, 1 - (0.5 + down / 2) / w}
                                            : std::array{across / w, 0.0, (across / 2 - 0.5) / w};
    const std::array<double, 3> t =
        rotated ? std::array{across / h, 0.0, (across / 2 - 0.5) / h} : std::array{0.0, down / h, (down / 2 - 0.5) / h};
    // From s and t, each in 0..1, to the quad.
    const double sum_x = x[0] - x[1] + x[2] - x[3], sum_y = y[0] - y[1] + y[2] - y[3];
    const double g = (sum_x * (y[3] - y[2]) - (x[3] - x[2]) * sum_y) / determinant;
    const double k = ((x[1] - x[2]) * sum_y - sum_x * (y[1] - y[2])) / determinant;
    const double square[3][3] = {{x[1] - x[0] + g * x[1], x[3] - x[0] + k * x[3], x[0]},
                                 {y[1] - y[0] + g * y[1], y[3] - y[0] + k * y[3], y[0]},
                                 {g, k, 1}};
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t j = 0; j < 3; ++j) map.factors[i][j] = square[i][0] * s[j] + square[i][1] * t[j];
      map.factors[i][2] += square[i][2];
    }
    return map;
  }
};

}  // namespace opgate::ops::perspective_crop

// The filters of Pillow's Image.resize. Where a side shrinks, a filter is as many times wider.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "filter_taps.h"
#include "rounding.h"

OPGATE_ROUND_EVERY_STEP

namespace opgate::ops::image_preprocess {
namespace {

constexpr int kPillowBits = 22;

double sinc(double x) {
  if (x == 0) return 1;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

/// Half of the width of a filter.
double support_of(Filter filter) {
  switch (filter) {
    case Filter::pil_box: return 0.5;
    case Filter::pil_bicubic: return 2;
    case Filter::pil_lanczos: return 3;
    default: return 1;
  }
}

/// Keys' cubic convolution with a = -1/2.
double bicubic(double x) {
  constexpr double a = -0.5;
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

/// Pillow's factors are f32.
double hamming(double x) { return x >= 1 ? 0 : sinc(x) * (0.54f + 0.46f * std::cos(std::numbers::pi * x)); }

double value_of(Filter filter, double x) {
  const double distance = std::fabs(x);
  switch (filter) {
    case Filter::pil_box: return x > -0.5 && x <= 0.5 ? 1 : 0;
    case Filter::pil_bilinear: return std::max(0.0, 1 - distance);
    case Filter::pil_hamming: return hamming(distance);
    case Filter::pil_bicubic: return bicubic(distance);
    default: return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0;
  }
}

}  // namespace

FilterTable pillow_taps(Filter filter, int from, const Part& part) {
  const double scale = static_cast<double>(from) / part.whole, stretch = std::max(scale, 1.0);
  const double support = support_of(filter) * stretch, step = 1 / stretch;
  FilterTable table(std::min(from, static_cast<int>(std::ceil(support)) * 2 + 1));
  std::vector<double> values;
  std::vector<std::int32_t> weights;
  for (int i = part.first; i < part.first + part.count; ++i) {
    const double centre = (i + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(centre - support + 0.5));
    const int last = std::min(from, static_cast<int>(centre + support + 0.5));
    values.clear();
    double sum = 0;
    for (int k = 0; k < last - first; ++k) {
      values.push_back(value_of(filter, (k + first - centre + 0.5) * step));
      sum += values.back();
    }
    weights.clear();
    for (const double value : values) {
      const double weight = sum == 0 ? value : value / sum;
      weights.push_back(static_cast<std::int32_t>(std::copysign(0.5, weight) + weight * (1 << kPillowBits)));
    }
    table.add(first, weights);
  }
  return table;
}

std::vector<int> pillow_nearest(int from, const Part& part) {
  const double step = static_cast<double>(from) / part.whole;
  std::vector<int> source;
  double position = step * 0.5;  // Pillow adds up the steps too
  for (int i = 0; i < part.first + part.count; ++i, position += step) {
    if (i >= part.first) source.push_back(std::min(from - 1, static_cast<int>(position)));
  }
  return source;
}

}  // namespace opgate::ops::image_preprocess

OPGATE_ROUND_AS_BEFORE

// The filters of OpenCV's cv2.resize for bytes.
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "filter_taps.h"
#include "rounding.h"

OPGATE_ROUND_EVERY_STEP

namespace opgate::ops::image_preprocess {
namespace {

/// A position in the source: the pixel at it or before it, and the distance from that pixel.
struct Position {
  int pixel;
  float distance;
};

Position position_of(int i, double scale) {
  const auto place = static_cast<float>((i + 0.5) * scale - 0.5);
  const float pixel = std::floor(place);
  return {static_cast<int>(pixel), place - pixel};
}

/// The same for two taps. Where INTER_AREA enlarges, a pixel takes a part of the next one only if it reaches into it.
Position linear_position_of(int i, int from, int to, bool area) {
  if (!area) return position_of(i, opencv_scale(from, to));
  const int pixel = static_cast<int>(std::floor(i * opencv_scale(from, to)));
  const auto reach = static_cast<float>((i + 1) - (pixel + 1) * (static_cast<double>(to) / from));
  return {pixel, reach <= 0 ? 0 : reach - std::floor(reach)};
}

/// A weight in units of 1/2048, rounded to the even one of two.
std::int32_t eleven_bits(float weight) { return static_cast<std::int32_t>(std::nearbyint(weight * 2048)); }

/// Keys' cubic convolution with a = -3/4, for the pixels at the distances 1 + x, x, 1 - x and 2 - x.
std::array<float, 4> cubic_weights(float x) {
  constexpr float a = -0.75f;
  const auto near = [](float t) { return ((a + 2) * t - (a + 3)) * t * t + 1; };
  const float outer = ((a * (x + 1) - 5 * a) * (x + 1) + 8 * a) * (x + 1) - 4 * a;
  const float left = near(x), right = near(1 - x);
  return {outer, left, right, 1 - outer - left - right};
}

/// sinc(t) sinc(t / 4) at t = x + 3, x + 2, .. x - 4, divided by the sum. sin(pi t) is the same for all, up to the
/// sign.
std::array<float, 8> lanczos_weights(float x) {
  std::array<float, 8> weights{};
  float sum = 0;
  for (int i = 0; i < 8; ++i) {
    const float t = x + static_cast<float>(3 - i);
    if (std::fabs(t) < 1e-6f) {
      weights = {};
      weights[static_cast<std::size_t>(i)] = 1;
      return weights;
    }
    const double angle = -t * std::numbers::pi * 0.25;
    const double value = std::sin(angle) / (angle * angle);
    weights[static_cast<std::size_t>(i)] = static_cast<float>(i % 2 == 0 ? value : -value);
    sum += weights[static_cast<std::size_t>(i)];
  }
  const float norm = 1 / sum;
  for (float& weight : weights) weight *= norm;
  return weights;
}

}  // namespace

FilterTable opencv_taps(Filter filter, int from, const Part& part) {
  const int size = filter == Filter::cv_cubic ? 4 : 8, before = size / 2 - 1;
  const double scale = opencv_scale(from, part.whole);
  FilterTable table(std::min(size, from));
  for (int i = part.first; i < part.first + part.count; ++i) {
    const Position position = position_of(i, scale);
    std::array<float, 8> weights{};
    if (filter == Filter::cv_cubic) {
      std::ranges::copy(cubic_weights(position.distance), weights.begin());
    } else {
      weights = lanczos_weights(position.distance);
    }
    const int first = std::clamp(position.pixel - before, 0, std::max(0, from - size));
    std::array<std::int32_t, 8> inside{};
    for (int k = 0; k < size; ++k) {
      const int pixel = std::clamp(position.pixel - before + k, 0, from - 1);
      inside[static_cast<std::size_t>(pixel - first)] += eleven_bits(weights[static_cast<std::size_t>(k)]);
    }
    table.add(first, std::span(inside).first(static_cast<std::size_t>(table.most())));
  }
  return table;
}

FilterTable opencv_linear_columns(int from, const Part& part, bool area) {
  FilterTable table(std::min(2, from));
  for (int i = part.first; i < part.first + part.count; ++i) {
    const auto [pixel, distance] = linear_position_of(i, from, part.whole, area);
    const std::int32_t weights[2] = {eleven_bits(1 - distance), eleven_bits(distance)};
    if (pixel < 0 || pixel >= from - 1) {
      table.add(std::clamp(pixel, 0, from - 1), std::array{eleven_bits(1)});
    } else {
      table.add(pixel, weights);
    }
  }
  return table;
}

std::vector<LinearTap> opencv_linear_rows(int from, const Part& part, bool area) {
  std::vector<LinearTap> taps;
  for (int i = part.first; i < part.first + part.count; ++i) {
    const auto [pixel, distance] = linear_position_of(i, from, part.whole, area);
    taps.push_back({std::clamp(pixel, 0, from - 1),
                    std::clamp(pixel + 1, 0, from - 1),
                    {eleven_bits(1 - distance), eleven_bits(distance)}});
  }
  return taps;
}

std::vector<std::vector<AreaTap>> opencv_area_taps(int from, const Part& part) {
  constexpr double kLeast = 1e-3;  // smaller parts of a pixel are left out
  const double scale = opencv_scale(from, part.whole);
  std::vector<std::vector<AreaTap>> taps;
  for (int i = part.first; i < part.first + part.count; ++i) {
    const double begin = i * scale, end = begin + scale, covered = std::min(scale, from - begin);
    const int last = std::min(static_cast<int>(std::floor(end)), from - 1);
    const int first = std::min(static_cast<int>(std::ceil(begin)), last);
    std::vector<AreaTap>& pixel = taps.emplace_back();
    const auto add = [&](int source, double length) {
      pixel.push_back({source, static_cast<float>(length / covered)});
    };
    if (first - begin > kLeast) add(first - 1, first - begin);
    for (int source = first; source < last; ++source) add(source, 1);
    if (end - last > kLeast) add(last, std::min(std::min(end - last, 1.0), covered));
  }
  return taps;
}

std::vector<int> opencv_nearest(int from, const Part& part) {
  const double scale = opencv_scale(from, part.whole);
  std::vector<int> source;
  for (int i = part.first; i < part.first + part.count; ++i)
    source.push_back(std::min(from - 1, static_cast<int>(std::floor(i * scale))));
  return source;
}

}  // namespace opgate::ops::image_preprocess

OPGATE_ROUND_AS_BEFORE

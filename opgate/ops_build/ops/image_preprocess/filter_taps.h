// The pixels of the source, and their weights, that each pixel of a resized side is made of, in the fixed point of Pillow
// and of OpenCV.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "placement.h"

namespace opgate::ops::image_preprocess {

enum class Filter {
  fast,
  pil_nearest,
  pil_box,
  pil_bilinear,
  pil_hamming,
  pil_bicubic,
  pil_lanczos,
  cv_nearest,
  cv_linear,
  cv_area,
  cv_cubic,
  cv_lanczos4
};

/// The taps of the pixels that a Part says: those of pixel i are the source pixels first[i] .. first[i] + count[i] - 1.
class FilterTable {
 public:
  explicit FilterTable(int most) : most_(most) {}

  int size() const { return static_cast<int>(first_.size()); }
  int most() const { return most_; }  ///< the largest count
  int first(int i) const { return first_[static_cast<std::size_t>(i)]; }
  int count(int i) const { return count_[static_cast<std::size_t>(i)]; }
  int last(int i) const { return first(i) + count(i) - 1; }
  const std::int32_t* weights(int i) const {
    return weights_.data() + static_cast<std::ptrdiff_t>(i) * static_cast<std::ptrdiff_t>(most_);
  }

  /// Adds the taps of the next pixel.
  void add(int first, std::span<const std::int32_t> weights) {
    first_.push_back(first);
    count_.push_back(static_cast<int>(weights.size()));
    weights_.insert(weights_.end(), weights.begin(), weights.end());
    weights_.resize(first_.size() * static_cast<std::size_t>(most_));
  }

 private:
  int most_;
  std::vector<int> first_, count_;
  std::vector<std::int32_t> weights_;
};

/// Pillow's: weights of 22 bits. `filter` is one of pil_box .. pil_lanczos.
FilterTable pillow_taps(Filter filter, int from, const Part& part);

/// OpenCV's: weights of 11 bits. `filter` is cv_cubic or cv_lanczos4. Pixels beyond an edge count as the one at the edge.
FilterTable opencv_taps(Filter filter, int from, const Part& part);

/// The two taps of OpenCV's INTER_LINEAR. Without `clamp_weight`, a tap beyond an edge keeps its weight: OpenCV's columns
/// and rows differ in this.
struct LinearTap {
  int first, second;
  std::int32_t weight[2];
};
std::vector<LinearTap> opencv_linear_taps(int from, const Part& part, bool clamp_weight);

/// The same for INTER_AREA where it enlarges.
std::vector<LinearTap> opencv_enlarging_area_taps(int from, const Part& part, bool clamp_weight);

/// The taps of OpenCV's INTER_AREA where it shrinks by no whole factor: the parts of the source pixels that one pixel of
/// the result covers.
struct AreaTap {
  int source;
  float weight;
};
std::vector<std::vector<AreaTap>> opencv_area_taps(int from, const Part& part);

/// The source pixel of each pixel, as Pillow's NEAREST and OpenCV's INTER_NEAREST choose it.
std::vector<int> pillow_nearest(int from, const Part& part);
std::vector<int> opencv_nearest(int from, const Part& part);

/// The size of the source divided by that of the result, with the rounding of OpenCV.
inline double opencv_scale(int from, int to) { return 1 / (static_cast<double>(to) / from); }

}  // namespace opgate::ops::image_preprocess

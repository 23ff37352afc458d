// The pixels of the source, and their weights, that each pixel of a resized side is made of, in the fixed point of
// Pillow and of OpenCV.
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

/// The taps of the pixels that a Part says: those of pixel i are the source pixels first(i) .. last(i).
class FilterTable {
 public:
  static constexpr int kLowBits = 11;

  explicit FilterTable(int most) : most_(most), stride_((static_cast<std::size_t>(most) + 7) / 8 * 8) {}

  int size() const { return static_cast<int>(first_.size()); }
  int most() const { return most_; }  ///< the largest count
  int first(int i) const { return first_[static_cast<std::size_t>(i)]; }
  int count(int i) const { return count_[static_cast<std::size_t>(i)]; }
  int last(int i) const { return first(i) + count(i) - 1; }
  const std::int32_t* weights(int i) const { return weights_.data() + start(i); }

  /// The weights in two halves, for processors that multiply 16 bits: weight = (high << kLowBits) + low. Behind the
  /// last one there are zeros up to a multiple of eight.
  const std::int16_t* low(int i) const { return low_.data() + start(i); }
  const std::int16_t* high(int i) const { return high_.data() + start(i); }

  /// Adds the taps of the next pixel.
  void add(int first, std::span<const std::int32_t> weights) {
    first_.push_back(first);
    count_.push_back(static_cast<int>(weights.size()));
    weights_.insert(weights_.end(), weights.begin(), weights.end());
    for (const std::int32_t weight : weights) {
      low_.push_back(static_cast<std::int16_t>(weight & ((1 << kLowBits) - 1)));
      high_.push_back(static_cast<std::int16_t>(weight >> kLowBits));
    }
    const std::size_t end = first_.size() * stride_;
    weights_.resize(end);
    low_.resize(end);
    high_.resize(end);
  }

 private:
  std::size_t start(int i) const { return static_cast<std::size_t>(i) * stride_; }

  int most_;
  std::size_t stride_;
  std::vector<int> first_, count_;
  std::vector<std::int32_t> weights_;
  std::vector<std::int16_t> low_, high_;
};

/// Pillow's: weights of 22 bits. `filter` is one of pil_box .. pil_lanczos.
FilterTable pillow_taps(Filter filter, int from, const Part& part);

/// OpenCV's: weights of 11 bits. `filter` is cv_cubic or cv_lanczos4. Pixels beyond an edge count as the one at the
/// edge.
FilterTable opencv_taps(Filter filter, int from, const Part& part);

/// The columns of OpenCV's INTER_LINEAR, and those of INTER_AREA (`area`) where it enlarges.
FilterTable opencv_linear_columns(int from, const Part& part, bool area);

/// Their rows. Beyond an edge both are the row at the edge, and each has its weight: OpenCV rounds them one by one.
struct LinearTap {
  int first, second;
  std::int32_t weight[2];
};
std::vector<LinearTap> opencv_linear_rows(int from, const Part& part, bool area);

/// The taps of OpenCV's INTER_AREA where it shrinks by no whole factor: the parts of the source pixels that one pixel
/// of the result covers.
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

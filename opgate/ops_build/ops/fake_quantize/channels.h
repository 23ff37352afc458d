// What FakeQuantize and its gradient have in common.
#pragma once

#include <cmath>
#include <optional>

#include "kernel_toolkit/elementary.h"
#include "kernel_toolkit/op.h"

namespace opgate::ops::fake_quantize {

/// The largest magnitude of quant_min and quant_max: the quantized numbers and their differences are exact in f32.
inline constexpr std::int64_t kMost = 1 << 20;

/// v, rounded to the nearest integer, to the even one of two. |v| is at most 2^22.
OPGATE_HOST_DEVICE inline float nearest(float v) { return (v + 12582912.0f) - 12582912.0f; }
OPGATE_HOST_DEVICE inline double nearest(double v) { return (v + 6755399441055744.0) - 6755399441055744.0; }

/// How the elements of one channel are quantized: to the multiples of `scale` from low to high. The zero point is 0
/// here, because the range is moved instead.
template <typename V>
struct Channel {
  V scale, inverse, low, high;

  OPGATE_HOST_DEVICE Channel(float scale_of_channel, std::int32_t zero_point, std::int64_t least, std::int64_t most)
      : scale(scale_of_channel),
        inverse(1.0f / scale_of_channel),
        low(static_cast<V>(least - zero_point)),
        high(static_cast<V>(most - zero_point)) {}

  OPGATE_HOST_DEVICE Channel(V scale_, V inverse_, V low_, V high_)
      : scale(scale_), inverse(inverse_), low(low_), high(high_) {}
};

/// The tensor as outer x channels x inner elements. With one scale there is one channel.
class Layout {
 public:
  /// Refuses a scale that doesn't fit x, and an axis that x doesn't have.
  static Status of(const Inputs& in, const Attributes& attributes, Layout& layout) {
    const Tensor& x = in["x"];
    const std::int64_t scales = in.size("k");
    layout.channels_ = 1;
    layout.inner_ = x.size();
    if (scales == 1) return {};
    const auto rank = static_cast<std::int64_t>(x.rank());
    const std::int64_t given = attributes.integer("axis"), axis = given < 0 ? given + rank : given;
    if (axis < 0 || axis >= rank)
      return attributes.refuse("axis", "an axis of x, whose rank is " + std::to_string(rank));
    if (x.dim(static_cast<std::size_t>(axis)) != scales) {
      return Status::invalid("input 'scale': expected 1 or " + std::to_string(x.dim(static_cast<std::size_t>(axis))) +
                             " elements, as x has on axis " + std::to_string(given) + ", got " +
                             std::to_string(scales));
    }
    layout.channels_ = scales;
    layout.inner_ = 1;
    for (std::int64_t i = axis + 1; i < rank; ++i) layout.inner_ *= x.dim(static_cast<std::size_t>(i));
    return {};
  }

  std::int64_t channels() const { return channels_; }
  std::int64_t inner() const { return inner_; }
  /// The channel of a row of `inner` elements.
  std::int64_t channel_of(std::int64_t row) const { return row % channels_; }

 private:
  std::int64_t channels_ = 1, inner_ = 0;
};

struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    const std::int64_t least = attributes.integer("quant_min"), most = attributes.integer("quant_max");
    if (least < -kMost || least > kMost) return attributes.refuse("quant_min", "-1048576..1048576");
    if (most < least || most > kMost) return attributes.refuse("quant_max", "quant_min..1048576");
    if (const auto k = sizes["k"]; k && *k < 1)
      return Status::invalid("input 'scale': expected 1 element or more, got 0");
    return {};
  }
};

/// Refuses scales that aren't positive, and zero points that aren't quantized numbers. On a GPU nobody can look.
inline Status check_values(const Inputs& in, const Attributes& attributes) {
  const std::int64_t least = attributes.integer("quant_min"), most = attributes.integer("quant_max");
  for (std::int64_t i = 0; i < in.size("k"); ++i) {
    const float scale = in["scale"].data<float>()[i];
    if (!(scale > 0) || std::isinf(scale)) {
      return Status::invalid("input 'scale': element " + std::to_string(i) + " is " + std::to_string(scale) +
                             ", expected a finite number above 0");
    }
    const std::int32_t zero_point = in["zero_point"].data<std::int32_t>()[i];
    if (zero_point < least || zero_point > most) {
      return Status::invalid("input 'zero_point': element " + std::to_string(i) + " is " + std::to_string(zero_point) +
                             ", expected " + std::to_string(least) + ".." + std::to_string(most));
    }
  }
  return {};
}

}  // namespace opgate::ops::fake_quantize

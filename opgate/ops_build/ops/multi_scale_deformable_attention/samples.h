// The levels and samples of MultiScaleDeformableAttention and of its gradient, for every device.
#pragma once

#include <limits>
#include <string>

#include "kernel_toolkit/numbers.h"
#include "kernel_toolkit/op.h"
#include "kernel_toolkit/sample.h"

namespace opgate::ops::multi_scale_deformable_attention {

/// A feature map: `height` rows of `width` keys, from key `start` on. A wrong one has no keys.
struct Level {
  std::int64_t height, width, start;

  /// Whether all keys of the level exist.
  static OPGATE_HOST_DEVICE bool fits(std::int64_t height, std::int64_t width, std::int64_t start, std::int64_t keys) {
    return height >= 0 && width >= 0 && start >= 0 && start <= keys &&
           (height == 0 || width <= (keys - start) / height);
  }
};

/// The sizes of a call.
struct Sizes {
  std::int64_t b, keys, heads, dims, queries, levels, points;

  static Sizes of(const Inputs& in) {
    return {in.size("b"),       in.size("keys"),   in.size("heads"), in.size("dims"),
            in.size("queries"), in.size("levels"), in.size("points")};
  }

  OPGATE_HOST_DEVICE std::int64_t samples() const { return b * queries * heads * levels * points; }
};

/// Where a sample lies in its level.
template <typename C>
OPGATE_HOST_DEVICE Sample<C> sample_in(C location_x, C location_y, const Level& level) {
  return Sample<C>::at(location_x * static_cast<C>(level.width) - C(0.5),
                       location_y * static_cast<C>(level.height) - C(0.5), level.width, level.height);
}

/// What both kernels of both ops have in common.
struct Checked {
  static Status check(const Attributes&, const KnownSizes& sizes) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    constexpr const char* kRows[] = {"b", "keys", "heads"};
    constexpr const char* kSamples[] = {"b", "queries", "heads", "levels", "points"};
    OPGATE_RETURN_IF_ERROR(at_most(sizes, kRows, kMost, "input 'value': expected fewer than 2^31 rows"));
    return at_most(sizes, kSamples, kMost, "input 'attention_weights': expected fewer than 2^31 elements");
  }

 private:
  static Status at_most(const KnownSizes& sizes, std::span<const char* const> names, std::int64_t most,
                        const char* message) {
    std::int64_t product = 1;
    for (const char* const name : names) {
      const auto size = sizes[name];
      if (!size || *size <= 0) return {};
      if (__builtin_mul_overflow(product, *size, &product)) product = std::numeric_limits<std::int64_t>::max();
    }
    return product > most ? Status::invalid(message) : Status{};
  }
};

}  // namespace opgate::ops::multi_scale_deformable_attention

// What the host can see to be wrong with a call, for every device.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "core/kernel.h"
#include "formula.h"

namespace opgate::ops {

inline constexpr std::int64_t kMaxSide = 1 << 24;

/// From the attributes `mean` and `std`, three numbers each. Fails, naming the attribute, on ones that aren't finite
/// and on a std of 0.
inline Status read_normalization(const Attributes& attributes, Normalization& normalization) {
  const std::vector<double>& mean = attributes.numbers("mean");
  const std::vector<double>& deviation = attributes.numbers("std");
  for (int k = 0; k < 3; ++k) {
    if (!std::isfinite(mean[k])) {
      return Status::invalid("attribute 'mean': expected finite numbers, got " + std::to_string(mean[k]));
    }
    if (!std::isfinite(deviation[k]) || deviation[k] == 0) {
      return Status::invalid("attribute 'std': expected finite numbers other than 0, got " +
                             std::to_string(deviation[k]));
    }
    normalization.scale[k] = static_cast<float>(1 / (255 * deviation[k]));
    normalization.bias[k] = static_cast<float>(-mean[k] / deviation[k]);
  }
  return {};
}

/// The sides that are wanted.
inline Status check_sides(const Attributes& attributes) {
  for (const char* name : {"height", "width"}) {
    if (const std::int64_t side = attributes.integer(name); side > kMaxSide) {
      return Status::invalid("attribute '" + std::string(name) + "': expected at most " + std::to_string(kMaxSide) +
                             ", got " + std::to_string(side));
    }
  }
  return {};
}

/// Pictures that pixels are wanted of.
inline Status check_pictures(const Tensor& image) {
  if (image.size() > 0 && std::max(image.dim(1), image.dim(2)) <= kMaxSide) return {};
  return Status::invalid("input 'image': expected sides of 1.." + std::to_string(kMaxSide) + ", got " +
                         dims_text(image.dims()));
}

}  // namespace opgate::ops

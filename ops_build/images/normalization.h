// The normalization of pixels to (value / 255 - mean) / std, for every device.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/attributes.h"

namespace opgate::images {

/// normalized = pixel * scale + bias, for R, G and B.
struct Normalization {
  float scale[3];
  float bias[3];
};

/// Checks the attributes `mean` and `std`, of three numbers each: all numbers must be finite, and no std may be 0.
inline Status check_normalization(const Attributes& attributes) {
  const auto finite = [](double value) { return std::isfinite(value); };
  const std::vector<double>& deviations = attributes.numbers("std");
  if (!std::ranges::all_of(attributes.numbers("mean"), finite)) return attributes.refuse("mean", "finite numbers");
  if (!std::ranges::all_of(deviations, finite) || std::ranges::count(deviations, 0.0))
    return attributes.refuse("std", "finite numbers other than 0");
  return {};
}

inline Normalization normalization_of(const Attributes& attributes) {
  const std::vector<double>& mean = attributes.numbers("mean");
  const std::vector<double>& deviation = attributes.numbers("std");
  Normalization normalization;
  for (int k = 0; k < 3; ++k) {
    normalization.scale[k] = static_cast<float>(1 / (255 * deviation[k]));
    normalization.bias[k] = static_cast<float>(-mean[k] / deviation[k]);
  }
  return normalization;
}

}  // namespace opgate::images

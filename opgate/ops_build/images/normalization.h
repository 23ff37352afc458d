// The normalization of pixels to (value / 255 - mean) / std, for every device.
#pragma once

#include <algorithm>
#include <cmath>

#include "signature/attributes.h"

namespace opgate::images {

/// normalized = pixel * scale + bias, for up to four channels.
struct Normalization {
  float scale[4];
  float bias[4];
};

/// Checks the attributes `mean` and `std`: all numbers must be finite, and no std may be 0.
inline Status check_normalization(const Attributes& attributes) {
  const auto finite = [](double value) { return std::isfinite(value); };
  const std::vector<double>& deviations = attributes.numbers("std");
  if (!std::ranges::all_of(attributes.numbers("mean"), finite)) return attributes.refuse("mean", "finite numbers");
  if (!std::ranges::all_of(deviations, finite) || std::ranges::count(deviations, 0.0))
    return attributes.refuse("std", "finite numbers other than 0");
  return {};
}

/// (value / most - mean) / std. A list of one number is that of all channels.
inline Normalization normalization_of(const Attributes& attributes, double most = 255) {
  const auto of_channel = [](const std::vector<double>& numbers, std::size_t k, double otherwise) {
    return numbers.size() == 1 ? numbers.front() : k < numbers.size() ? numbers[k] : otherwise;
  };
  Normalization normalization;
  for (std::size_t k = 0; k < 4; ++k) {
    const double mean = of_channel(attributes.numbers("mean"), k, 0);
    const double deviation = of_channel(attributes.numbers("std"), k, 1);
    normalization.scale[k] = static_cast<float>(1 / (most * deviation));
    normalization.bias[k] = static_cast<float>(-mean / deviation);
  }
  return normalization;
}

}  // namespace opgate::images

// The normalization of pixels to (value / 255 - mean) / std, for every device.
#pragma once

#include <cmath>
#include <string>

#include "core/attributes.h"

namespace opgate::images {

/// normalized = pixel * scale + bias, for R, G and B.
struct Normalization {
  float scale[3];
  float bias[3];
};

/// From the attributes `mean` and `std`, three numbers each. Fails, naming the attribute, on numbers that aren't finite
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

}  // namespace opgate::images

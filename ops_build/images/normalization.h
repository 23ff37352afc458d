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

/// Reads the attributes `mean` and `std`, of three numbers each. Fails, and names the attribute, if a number isn't
/// finite or a std is 0.
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

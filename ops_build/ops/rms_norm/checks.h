// What the host can see to be wrong with a call, for every device.
#pragma once

#include <cmath>
#include <string>

#include "core/kernel.h"

namespace opgate::ops {

inline Status read_epsilon(const Attributes& attributes, float& epsilon) {
  epsilon = static_cast<float>(attributes.number("epsilon"));
  if (epsilon >= 0 && !std::isinf(epsilon)) return {};
  return Status::invalid("attribute 'epsilon': expected a finite number, 0 or more, got " + std::to_string(epsilon));
}

}  // namespace opgate::ops

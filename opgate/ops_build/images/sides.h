// How large the sides of a picture may be.
#pragma once

#include <cstdint>
#include <string>

#include "op_call/kernel.h"

namespace opgate::images {

/// Checks the sizes h and w of an input, as far as they are known.
inline Status check_sides(const KnownSizes& sizes, const std::string& input, std::int64_t most) {
  for (const char* name : {"h", "w"}) {
    if (const auto side = sizes[name]; side && *side > most) {
      return Status::invalid("input '" + input + "': expected sides of at most " + std::to_string(most) + ", got " +
                             std::to_string(*side));
    }
  }
  return {};
}

}  // namespace opgate::images

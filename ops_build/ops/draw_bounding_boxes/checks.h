// The attributes, for every device.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "core/kernel.h"
#include "font.h"

namespace opgate::ops::drawing {

/// The outline's, for a picture of these sides.
inline Status read_thickness(const Attributes& attributes, std::int64_t height, std::int64_t width,
                             std::int64_t& thickness) {
  constexpr std::int64_t kMost = 1000;
  thickness = attributes.integer("thickness");
  if (thickness < 0 || thickness > kMost) {
    return Status::invalid("attribute 'thickness': expected 0 (chosen by the picture's size) to " +
                           std::to_string(kMost) + ", got " + std::to_string(thickness));
  }
  // round(shorter side / 200)
  if (thickness == 0) thickness = std::clamp<std::int64_t>((std::min(height, width) + 100) / 200, 2, kMost);
  return {};
}

/// The names in what the font can write: every character that it lacks is a '?', a multi-byte one of UTF-8 too.
inline std::vector<std::string> writable_names(const Attributes& attributes) {
  std::vector<std::string> names;
  for (const std::string& name : attributes.texts("names")) {
    std::string& text = names.emplace_back();
    for (const char letter : name) {
      const bool continuation = (static_cast<unsigned char>(letter) & 0xc0) == 0x80;
      if (letter >= kFirstGlyph && letter <= kLastGlyph)
        text += letter;
      else if (!continuation)
        text += '?';
    }
  }
  return names;
}

}  // namespace opgate::ops::drawing

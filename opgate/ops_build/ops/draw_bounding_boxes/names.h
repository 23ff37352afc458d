// The names of labels, as letters of the font.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "marks.h"

namespace opgate::ops::draw_bounding_boxes {

struct Names {
  std::string letters;             ///< of all names, one after another
  std::vector<std::int32_t> ends;  ///< where each name ends in `letters`

  /// Adds a name in UTF-8. A character that the font doesn't have becomes a ?.
  void add(const std::string& name) {
    for (const char letter : name) {
      const bool continues = (static_cast<unsigned char>(letter) & 0xc0) == 0x80;
      if (!continues) letters += letter >= kFirstGlyph && letter <= kLastGlyph ? letter : '?';
    }
    ends.push_back(static_cast<std::int32_t>(letters.size()));
  }

  std::int64_t size() const { return static_cast<std::int64_t>(ends.size()); }
};

}  // namespace opgate::ops::draw_bounding_boxes

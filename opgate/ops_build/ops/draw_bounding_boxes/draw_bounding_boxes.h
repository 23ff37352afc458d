#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "core/op.h"
#include "marks.h"

OPGATE_OP(DrawBoundingBoxes,
          "DrawBoundingBoxes(image: u8[h,w,3], boxes: f32[k,4], scores?: f32[k], labels?: i32[k], count?: i32[1]; "
          "names: str[]=[], thickness: int=0) -> (drawn: u8[h,w,3])",
          "Draws boxes with their labels and scores into a copy of an RGB picture.")

namespace opgate::ops::draw_bounding_boxes {

struct Settings {
  std::int64_t thickness = 0;      ///< 0: the size of the picture decides
  std::string letters;             ///< of all names, one after another, as letters of the font
  std::vector<std::int32_t> ends;  ///< where each name ends in `letters`

  Settings() = default;
  explicit Settings(const Attributes& attributes) : thickness(attributes.integer("thickness")) {
    for (const std::string& name : attributes.texts("names")) {
      for (const char letter : name) {
        const bool continues = (static_cast<unsigned char>(letter) & 0xc0) == 0x80;  // a UTF-8 character
        if (!continues) letters += letter >= kFirstGlyph && letter <= kLastGlyph ? letter : '?';
      }
      ends.push_back(static_cast<std::int32_t>(letters.size()));
    }
  }

  /// The rows of a call. `letters` and `ends` are in memory of the kernel's device.
  Rows rows_of(const Inputs& in, const char* letters, const std::int32_t* ends) const {
    const std::int64_t height = in.size("h"), width = in.size("w");
    // round(shorter side / 200)
    const std::int64_t by_size = std::max<std::int64_t>((std::min(height, width) + 100) / 200, 2);
    return {.boxes = in["boxes"].data<float>(),
            .scores = in.has("scores") ? in["scores"].data<float>() : nullptr,
            .labels = in.has("labels") ? in["labels"].data<std::int32_t>() : nullptr,
            .count = in.has("count") ? in["count"].data<std::int32_t>() : nullptr,
            .k = in.size("k"),
            .letters = letters,
            .name_ends = ends,
            .names = static_cast<std::int64_t>(this->ends.size()),
            .picture = {width, height},
            .thickness = thickness ? thickness : by_size};
  }
};

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes&) {
    constexpr std::int64_t kMost = 1000;
    const std::int64_t thickness = attributes.integer("thickness");
    if (thickness >= 0 && thickness <= kMost) return {};
    return attributes.refuse("thickness", "0 (chosen by the picture's size) to " + std::to_string(kMost));
  }
};

}  // namespace opgate::ops::draw_bounding_boxes

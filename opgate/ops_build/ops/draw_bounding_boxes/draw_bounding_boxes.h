#pragma once

#include "checked.h"
#include "names.h"

OPGATE_OP(DrawBoundingBoxes,
          "DrawBoundingBoxes(image: u8[h,w,3], boxes: f32[k,4], scores?: f32[k], labels?: i32[k], count?: i32[1]; "
          "names: str[]=[], thickness: int=0) -> (drawn: u8[h,w,3])",
          "Draws boxes with their labels and scores into a copy of an RGB picture.")

namespace opgate::ops::draw_bounding_boxes {

struct Settings {
  std::int64_t thickness = 0;  ///< 0: the size of the picture decides
  Names names;

  Settings() = default;
  explicit Settings(const Attributes& attributes) : thickness(attributes.integer("thickness")) {
    for (const std::string& name : attributes.texts("names")) names.add(name);
  }

  /// The rows of a call. `letters` and `ends` are in memory of the kernel's device.
  Rows rows_of(const Inputs& in, const char* letters, const std::int32_t* ends) const {
    const PictureSize picture{in.size("w"), in.size("h")};
    return {.boxes = in["boxes"].data<float>(),
            .scores = in.has("scores") ? in["scores"].data<float>() : nullptr,
            .labels = in.has("labels") ? in["labels"].data<std::int32_t>() : nullptr,
            .count = in.has("count") ? in["count"].data<std::int32_t>() : nullptr,
            .k = in.size("k"),
            .letters = letters,
            .name_ends = ends,
            .names = names.size(),
            .picture = picture,
            .thickness = thickness_of(thickness, picture)};
  }
};

}  // namespace opgate::ops::draw_bounding_boxes

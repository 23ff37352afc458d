#pragma once

#include "ops/draw_bounding_boxes/checked.h"
#include "ops/draw_bounding_boxes/names.h"

OPGATE_OP(DrawPolygons,
          "DrawPolygons(image: u8[h,w,3], polygons: f32[k,p,2], scores?: f32[k], labels?: i32[k], texts?: i32[k,t], "
          "count?: i32[1]; names: str[]=[], thickness: int=0) -> (drawn: u8[h,w,3])",
          "Draws polygons with their labels or texts and scores into a copy of an RGB picture.")

namespace opgate::ops::draw_polygons {

/// A side of a polygon. A whole number is the centre of a pixel.
struct Side {
  double x, y, dx, dy;

  /// Whether a pixel is at most `reach` away from the side.
  bool is_near(std::int64_t column, std::int64_t row, double reach) const {
    const double px = static_cast<double>(column) - x, py = static_cast<double>(row) - y;
    const double length = dx * dx + dy * dy;
    const double along = length > 0 ? (px * dx + py * dy) / length : 0;
    const double held = along < 0 ? 0 : along > 1 ? 1 : along;
    const double beside = px - held * dx, below = py - held * dy;
    return beside * beside + below * below <= reach * reach;
  }
};

}  // namespace opgate::ops::draw_polygons

#pragma once

#include "core/op.h"

OPGATE_OP(DrawBoundingBoxes,
          "DrawBoundingBoxes(image: u8[h,w,3], boxes: f32[k,4], scores?: f32[k], labels?: i32[k], count?: i32[1]; "
          "names: str[]=[], thickness: int=0) -> (drawn: u8[h,w,3])",
          "Boxes with their labels and scores drawn into a copy of an RGB picture.")

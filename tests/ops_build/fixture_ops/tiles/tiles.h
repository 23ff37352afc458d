// Tests the same as Patches with a dtype that TensorRT accepts: expressions in sizes, an integer scalar in host memory
// and an integer attribute as sizes, and an input whose size must equal an expression.
#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(Tiles,
          "Tiles(x: f32[h,w], row: f32[2*w], times: const i64[]; size: int=4) -> "
          "(grid: f32[ceildiv(h,size),ceildiv(w,size)], tiled: f32[times,max(h,w)-min(h,w)+h%size])",
          "Sum of each patch; an array of ones of a computed size.")

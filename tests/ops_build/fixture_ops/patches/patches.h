// Expressions in sizes, an integer scalar in host memory and an integer attribute as sizes, an input dim that checks.
#pragma once

#include "core/op.h"

OPGATE_OP(Patches,
          "Patches(image: u8[h,w], row: u8[2*w], times: const i64[]; size: int=4) -> "
          "(grid: i32[ceildiv(h,size),ceildiv(w,size)], tiled: u8[times,max(h,w)-min(h,w)+h%size])",
          "Sum of each patch; an array of ones of a computed size.")

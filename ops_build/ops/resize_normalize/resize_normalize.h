#pragma once

#include "core/op.h"

OPGATE_OP(ResizeNormalize,
          "ResizeNormalize(image: u8[n,h,w,3]; height: int, width: int, mean: float[3]=[0,0,0], std: float[3]=[1,1,1], "
          "interpolation: {linear|nearest}=linear) -> (tensor: f32[n,3,height,width])",
          "Pictures resized, normalized and transposed to planes.")

#pragma once

#include "geometry.h"

OPGATE_OP(DeformConv2d,
          "<T: f16|bf16|f32|f64> DeformConv2d(input: T[n,c,h,w], weight: T[oc,cg,kh,kw], offset: T[n,offsets,oh,ow], "
          "bias?: T[oc], mask?: T[n,offsets/2,oh,ow]; stride_h: int=1, stride_w: int=1, pad_h: int=0, pad_w: int=0, "
          "dilation_h: int=1, dilation_w: int=1) -> (output: T[n,oc,oh,ow])",
          "A convolution whose filters sample the input beside their places: deformable, with a mask modulated.")

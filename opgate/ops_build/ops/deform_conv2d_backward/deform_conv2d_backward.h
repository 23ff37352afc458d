#pragma once

#include "ops/deform_conv2d/geometry.h"

OPGATE_OP(DeformConv2dBackward,
          "<T: f16|bf16|f32|f64> DeformConv2dBackward(grad_output: T[n,oc,oh,ow], input: T[n,c,h,w], "
          "weight: T[oc,cg,kh,kw], offset: T[n,offsets,oh,ow], mask?: T[n,offsets/2,oh,ow]; stride_h: int=1, "
          "stride_w: int=1, pad_h: int=0, pad_w: int=0, dilation_h: int=1, dilation_w: int=1) "
          "-> (grad_input: T[n,c,h,w], grad_weight: T[oc,cg,kh,kw], grad_offset: T[n,offsets,oh,ow], "
          "grad_bias?: T[oc], grad_mask?: T[n,offsets/2,oh,ow])",
          "The gradients of DeformConv2d with respect to input, filters, offsets, bias and mask.")

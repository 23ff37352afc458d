#pragma once

#include "ops/three_interpolate/three_interpolate.h"

OPGATE_OP(ThreeInterpolateBackward,
          "<T: f16|bf16|f32|f64> ThreeInterpolateBackward(grad_y: T[m,c], features: T[n,c], idx: i32[m,k], "
          "weight: T[m,k]) -> (grad_features: T[n,c], grad_weight: T[m,k])",
          "The gradients of ThreeInterpolate with respect to the features and to the weights.")

#pragma once

#include "ops/group_norm/groups.h"

OPGATE_OP(GroupNormBackward,
          "<T: f16|bf16|f32|f64> GroupNormBackward(grad_y: T[n,c,...], sum: T[n,c,...], weight?: T[c], "
          "grad_sum?: T[n,c,...]; groups: int, epsilon: float=0.00001) "
          "-> (grad_x_and_residual: T[n,c,...], grad_weight?: T[c], grad_bias?: T[c])",
          "The gradient of GroupNorm: those of x and residual, which are the same, of weight and of bias.")

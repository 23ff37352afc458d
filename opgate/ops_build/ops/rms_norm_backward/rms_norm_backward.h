#pragma once

#include "norms/epsilon.h"

OPGATE_OP(RMSNormBackward,
          "<T: f16|bf16|f32|f64> RMSNormBackward(grad_y: T[...,c], sum: T[...,c], weight?: T[c], "
          "grad_sum?: T[...,c]; epsilon: float=0.00001) -> (grad_x_and_residual: T[...,c], grad_weight?: T[c])",
          "The gradient of RMSNorm: those of x and residual, which are the same, and of weight.")

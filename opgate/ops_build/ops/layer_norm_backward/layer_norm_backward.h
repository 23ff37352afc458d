#pragma once

#include "norms/epsilon.h"

OPGATE_OP(LayerNormBackward,
          "<T: f16|bf16|f32|f64> LayerNormBackward(grad_y: T[...,c], sum: T[...,c], weight?: T[c], "
          "grad_sum?: T[...,c]; epsilon: float=0.00001) "
          "-> (grad_x_and_residual: T[...,c], grad_weight?: T[c], grad_bias?: T[c])",
          "The gradient of LayerNorm: those of x and residual, which are the same, of weight and of bias.")

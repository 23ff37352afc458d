#pragma once

#include "norms/epsilon.h"

OPGATE_OP(RMSNorm,
          "<T: f16|bf16|f32|f64> RMSNorm(x: T[...,c], weight?: T[c], residual?: T[...,c]; epsilon: float=0.00001) "
          "-> (y: T[...,c], sum?: T[...,c])",
          "x + residual, divided by the root of the mean of its squares over the last axis, times weight.")

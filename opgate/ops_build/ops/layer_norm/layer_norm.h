#pragma once

#include "kernel_toolkit/op.h"
#include "norms/epsilon.h"

OPGATE_OP(LayerNorm,
          "<T: f16|bf16|f32|f64> LayerNorm(x: T[...,c], weight?: T[c], bias?: T[c], residual?: T[...,c]; "
          "epsilon: float=0.00001) -> (y: T[...,c], sum?: T[...,c])",
          "x + residual, shifted and scaled to mean 0 and variance 1 over the last axis, times weight, plus bias.")

#pragma once

#include "groups.h"

OPGATE_OP(
    GroupNorm,
    "<T: f16|bf16|f32|f64> GroupNorm(x: T[n,c,...], weight?: T[c], bias?: T[c], residual?: T[n,c,...]; "
    "groups: int, epsilon: float=0.00001) -> (y: T[n,c,...], sum?: T[n,c,...])",
    "x + residual, shifted and scaled to mean 0 and variance 1 in each group of channels, times weight, plus bias.")

#pragma once

#include "core/op.h"

OPGATE_OP(LeakyRelu, "<T: f16|bf16|f32|f64> LeakyRelu(x: T[...]; alpha: float=0.01) -> (y: T[...])",
          "x where x >= 0, alpha x elsewhere.")

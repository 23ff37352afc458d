#pragma once

#include "core/op.h"

OPGATE_OP(Mish, "<T: f16|bf16|f32|f64> Mish(x: T[...]) -> (y: T[...])", "x tanh(ln(1 + exp(x))), elementwise.")

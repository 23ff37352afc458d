#pragma once

#include "core/op.h"

OPGATE_OP(MishBackward, "<T: f16|bf16|f32|f64> MishBackward(grad_y: T[...], x: T[...]) -> (grad_x: T[...])",
          "The gradient of Mish: grad_y times the derivative at x, elementwise.")

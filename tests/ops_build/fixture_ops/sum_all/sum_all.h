// Tests a variadic input of one type.
#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(SumAll, "<T: f32|f64|i64> SumAll(xs*: T[...]) -> (y: T[...])", "The elementwise sum of all inputs.")

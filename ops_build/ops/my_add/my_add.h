#pragma once

#include "core/op.h"

OPGATE_OP(MyAdd, "<T: f16|f32|f64|i32|i64> MyAdd(a: T[...], b: T[...]) -> (y: T[...])", "2 a + b, elementwise.")

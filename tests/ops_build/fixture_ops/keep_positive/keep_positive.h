// Tests a size that is known only after the kernel has run and that two outputs share, a type variable, and scratch
// memory.
#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(KeepPositive, "<T: f32|i32> KeepPositive(x: T[n]) -> (values: T[v<=n], indices: i64[v])",
          "The positive elements and their indices.")

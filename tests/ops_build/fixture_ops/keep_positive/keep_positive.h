// A size known only after the kernel has run, shared by two outputs; a type variable; scratch memory.
#pragma once

#include "core/op.h"

OPGATE_OP(KeepPositive, "<T: f32|i32> KeepPositive(x: T[n]) -> (values: T[v<=n], places: i64[v])",
          "The positive elements and where they stood.")

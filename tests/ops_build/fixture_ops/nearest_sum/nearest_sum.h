// Tests optional inputs (one has a size with a default), an optional output, and several dtypes in one op.
#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(NearestSum,
          "NearestSum(points: f32[n,d], segment?: i32[n], query?: f32[m=n,d], weight?: f32[m]; scale: float=1.0) -> "
          "(sum: f32[m], count?: i64[m])",
          "Sum of all points' coordinates and of each query's, times scale and the query's weight.")

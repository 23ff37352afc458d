#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(GridCluster,
          "<T: f32|f64> GridCluster(pos: T[n,d], size: T[d], start?: T[d], end?: T[d]) -> (cluster: i64[n])",
          "The number of the cell of a regular grid that each point is in.")

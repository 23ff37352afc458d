#pragma once

#include "core/op.h"

OPGATE_OP(KNNQuery,
          "KNNQuery(xyz: f32[n,3], offset: i32[b], new_xyz?: f32[m=n,3], new_offset?: i32[b]; nsample: int=16) "
          "-> (idx: i32[m,nsample], dist: f32[m,nsample])",
          "The nsample nearest points of each query in its own segment, nearest first.")

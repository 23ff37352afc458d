#pragma once

#include "kernel_toolkit/op.h"
#include "points/segments.h"

OPGATE_OP(KNNQuery,
          "<T: f32|f64, I: i32|i64> KNNQuery(xyz: T[n,d], offset: I[b], new_xyz?: T[m=n,d], new_offset?: I[b]; "
          "nsample: int=16, fill: int=-1) -> (idx: i32[m,nsample], dist: T[m,nsample])",
          "Finds the nsample nearest points of each query in its segment, nearest first.")

namespace opgate::ops::knn_query {

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) { return check_rows(attributes, sizes); }
};

}  // namespace opgate::ops::knn_query

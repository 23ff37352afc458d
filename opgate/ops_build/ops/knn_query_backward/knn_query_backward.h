#pragma once

#include <limits>
#include <string>

#include "kernel_toolkit/op.h"

OPGATE_OP(KNNQueryBackward,
          "<T: f32|f64> KNNQueryBackward(grad_dist: T[m,nsample], xyz: T[n,d], idx: i32[m,nsample], "
          "dist: T[m,nsample], new_xyz?: T[m,d]) -> (grad_xyz: T[n,d], grad_new_xyz: T[m,d])",
          "The gradients of KNNQuery's distances with respect to the points and to the queries.")

namespace opgate::ops::knn_query_backward {

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes&, const KnownSizes& sizes) {
    if (const auto n = sizes["n"]; n && *n > std::numeric_limits<std::int32_t>::max())
      return Status::invalid("input 'xyz': expected fewer than 2^31 rows, got " + std::to_string(*n));
    return {};
  }
};

/// Checks that each query has a place.
inline Status check_queries(const Inputs& in) {
  if (in.has("new_xyz") || in.size("n") == in.size("m")) return {};
  return Status::invalid("input 'new_xyz': expected the " + std::to_string(in.size("m")) +
                         " queries, got none; it may be left out where the " + std::to_string(in.size("n")) +
                         " points are the queries");
}

}  // namespace opgate::ops::knn_query_backward

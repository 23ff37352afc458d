#pragma once

#include <limits>

#include "reductions/formula.h"

OPGATE_OP(SegmentReduce,
          "<T: f16|bf16|f32|f64> SegmentReduce(x: T[n,...], ends: i32[s]; reduce: {sum|mean|max|min}=sum) "
          "-> (y: T[s,...])",
          "Reduces the rows of each segment to one: their sum, mean, greatest or least. An empty segment gives 0.")

namespace opgate::ops::segment_reduce {

inline Status wrong_last_end(std::int64_t n, const std::string& got) {
  return Status::invalid("input 'ends': expected the last end to be " + std::to_string(n) + ", the rows of 'x', got " +
                         got);
}

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes&, const KnownSizes& sizes) {
    const auto n = sizes["n"], s = sizes["s"];
    return n && *n > 0 && s && *s == 0 ? wrong_last_end(*n, "no ends") : Status();
  }
};

}  // namespace opgate::ops::segment_reduce

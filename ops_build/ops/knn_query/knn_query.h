#pragma once

#include <limits>
#include <string>
#include <utility>

#include "core/op.h"

OPGATE_OP(KNNQuery,
          "<T: f32|f64, I: i32|i64> KNNQuery(xyz: T[n,d], offset: I[b], new_xyz?: T[m=n,d], new_offset?: I[b]; "
          "nsample: int=16, fill: int=-1) -> (idx: i32[m,nsample], dist: T[m,nsample])",
          "Finds the nsample nearest points of each query in its segment, nearest first.")

namespace opgate::ops::knn_query {

inline Status wrong_last_end(const std::string& name, const std::string& rows, std::int64_t total,
                             const std::string& got) {
  return Status::invalid("input '" + name + "': expected the last end to be " + std::to_string(total) +
                         ", the rows of '" + rows + "', got " + got);
}

/// What both kernels have in common.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    if (attributes.integer("nsample") > kMost) return attributes.refuse("nsample", "at most " + std::to_string(kMost));
    const std::int64_t fill = attributes.integer("fill");
    if (fill > kMost || fill < -kMost - 1) return attributes.refuse("fill", "a number of 32 bits");
    for (const auto& [rows, input] : {std::pair("n", "xyz"), std::pair("m", "new_xyz")}) {
      if (const auto count = sizes[rows]; count && *count > kMost) {
        return Status::invalid("input '" + std::string(input) + "': expected fewer than 2^31 rows, got " +
                               std::to_string(*count));
      }
    }
    if (const auto n = sizes["n"], b = sizes["b"]; b && *b == 0 && n && *n > 0)
      return wrong_last_end("offset", "xyz", *n, "no ends");
    return {};
  }
};

/// Checks that the right inputs with ends of segments are present. It doesn't read the ends.
inline Status check_segments_given(const Inputs& in) {
  const std::int64_t segments = in.size("b");
  if (in.has("new_offset")) {
    if (!in.has("new_xyz")) return Status::invalid("input 'new_offset': expected 'new_xyz' with it, got none");
    if (segments == 0 && in.size("m") > 0) return wrong_last_end("new_offset", "new_xyz", in.size("m"), "no ends");
  } else if (in.has("new_xyz") && segments != 1) {
    return Status::invalid("input 'new_offset': expected the ends of the " + std::to_string(segments) +
                           " segments of 'new_xyz', got none; it may be left out where there is one segment");
  }
  return {};
}

}  // namespace opgate::ops::knn_query

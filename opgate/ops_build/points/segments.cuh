// The segments of points and of their queries on CUDA.
#pragma once

#include <cstdint>

#include "op_call/inputs.h"

namespace opgate::ops::knn_query {

struct Range {
  std::int64_t begin, end;
};

/// The ends of the segments. A kernel can't report wrong ends: they give some range within the rows.
template <typename I>
struct Ends {
  std::int64_t n, segments;
  const I* ends;
  const I* query_ends;  ///< null if all queries belong to the first segment

  static Ends of(const Inputs& in) {
    const I* const ends = in["offset"].data<I>();
    return {in.size("n"), in.size("b"), ends,
            in.has("new_offset") ? in["new_offset"].data<I>()
            : in.has("new_xyz")  ? nullptr
                                 : ends};
  }

  /// The points of a segment.
  __device__ Range points_of(std::int64_t segment) const {
    return {segment ? within(ends[segment - 1], n) : 0, within(ends[segment], n)};
  }

  /// The points of the segment of query `i`.
  __device__ Range range_of(std::int64_t i) const {
    const std::int64_t segment = query_ends ? first_behind(query_ends, segments, i) : 0;
    return segment < segments ? points_of(segment) : Range{0, 0};
  }

  /// The number of the first of the ends that is greater than row `i`.
  __device__ static std::int64_t first_behind(const I* ends, std::int64_t segments, std::int64_t i) {
    std::int64_t segment = 0;
    for (std::int64_t behind = segments; segment < behind;) {
      const std::int64_t middle = (segment + behind) / 2;
      if (ends[middle] > i) {
        behind = middle;
      } else {
        segment = middle + 1;
      }
    }
    return segment;
  }

  __device__ static std::int64_t within(std::int64_t row, std::int64_t rows) {
    return row < 0 ? 0 : row > rows ? rows : row;
  }
};

}  // namespace opgate::ops::knn_query

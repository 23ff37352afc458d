// The segments of points and of their queries, for every op that finds points around queries.
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "op_call/kernel.h"

namespace opgate::ops::knn_query {

inline Status wrong_last_end(const std::string& name, const std::string& rows, std::int64_t total,
                             const std::string& got) {
  return Status::invalid("input '" + name + "': expected the last end to be " + std::to_string(total) +
                         ", the rows of '" + rows + "', got " + got);
}

/// Checks the attribute `fill`, and the sizes n and b of `xyz` and `offset` and m of `new_xyz`.
inline Status check_rows(const Attributes& attributes, const KnownSizes& sizes) {
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

/// The points [begin, end) of a segment and its queries [first, last).
struct Segment {
  std::int64_t begin, end, first, last;

  std::int64_t points() const { return end - begin; }
  std::int64_t queries() const { return last - first; }
};

/// Reads the ends of segments and checks that they ascend.
template <typename I>
Status read_ascending(const Tensor& tensor, std::vector<std::int64_t>& to) {
  const std::span<const I> ends = tensor.span<I>();
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (ends[i] < begin) {
      return Status::invalid("input '" + std::string(tensor.name()) +
                             "': expected ends of segments that don't decrease, got " + std::to_string(ends[i]) +
                             " at " + std::to_string(i) + " after " + std::to_string(begin));
    }
    begin = ends[i];
    to.push_back(begin);
  }
  return {};
}

/// Reads the ends of segments and checks them: ascending, up to `total`, the number of rows of input `rows`.
template <typename I>
Status read_ends(const Tensor& tensor, const std::string& rows, std::int64_t total, std::vector<std::int64_t>& to) {
  OPGATE_RETURN_IF_ERROR(read_ascending<I>(tensor, to));
  const std::int64_t last = to.empty() ? 0 : to.back();
  return last == total ? Status() : wrong_last_end(std::string(tensor.name()), rows, total, std::to_string(last));
}

/// Reads the segments of `xyz` and of its queries.
template <typename I>
Status read_segments(const Inputs& in, std::vector<Segment>& segments) {
  OPGATE_RETURN_IF_ERROR(check_segments_given(in));
  const std::int64_t m = in.size("m");
  std::vector<std::int64_t> ends, query_ends;
  OPGATE_RETURN_IF_ERROR(read_ends<I>(in["offset"], "xyz", in.size("n"), ends));
  if (in.has("new_offset")) {
    OPGATE_RETURN_IF_ERROR(read_ends<I>(in["new_offset"], "new_xyz", m, query_ends));
  } else {
    query_ends = in.has("new_xyz") ? std::vector{m} : ends;
  }
  Segment segment{};
  for (std::size_t i = 0; i < ends.size(); ++i) {
    segment = {segment.end, ends[i], segment.last, query_ends[i]};
    segments.push_back(segment);
  }
  return {};
}

}  // namespace opgate::ops::knn_query

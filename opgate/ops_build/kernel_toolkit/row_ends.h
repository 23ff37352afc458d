// Rows of different lengths in one flat tensor: row i has the elements [ends[i - 1], ends[i]).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "signature/status.h"

namespace opgate {

/// Refuses ends that decrease or lie outside of the `total` elements of the input 'data'.
inline Status check_ends(std::span<const std::int32_t> ends, std::int64_t total) {
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (ends[i] < begin || ends[i] > total) {
      return Status::invalid("input 'ends': expected offsets that don't decrease, within 0.." + std::to_string(total) +
                             " (the size of 'data'), got " + std::to_string(ends[i]) + " at " + std::to_string(i) +
                             (i ? " after " + std::to_string(begin) : ""));
    }
    begin = ends[i];
  }
  return {};
}

/// The row `i` of `data`, for ends that check_ends accepts.
template <typename T>
std::span<const T> row_of(std::span<const T> data, std::span<const std::int32_t> ends, std::int64_t i) {
  const auto begin = static_cast<std::size_t>(i ? ends[static_cast<std::size_t>(i - 1)] : 0);
  return data.subspan(begin, static_cast<std::size_t>(ends[static_cast<std::size_t>(i)]) - begin);
}

}  // namespace opgate

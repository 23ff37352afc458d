// What the ops on voxels refuse.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include "formula.h"
#include "op_call/kernel.h"

namespace opgate::ops::voxelize {

inline Columns columns_of(const Attributes& attributes) {
  return {attributes.integer("batch_columns") == 1, attributes.text("order") == "zyx"};
}

/// Checks points [n,c] and the attribute batch_columns.
inline Status check_points(const Attributes& attributes, const KnownSizes& sizes) {
  const std::int64_t batch_columns = attributes.integer("batch_columns");
  if (batch_columns != 0 && batch_columns != 1) return attributes.refuse("batch_columns", "0 or 1");
  const std::optional<std::int64_t> n = sizes["n"], c = sizes["c"];
  if (c && *c < 3 + batch_columns) {
    return Status::invalid("input 'points': expected f32[n,c] with c >= " + std::to_string(3 + batch_columns) +
                           (batch_columns ? " (batch, x, y, z first)" : " (x, y, z first)") +
                           ", got c = " + std::to_string(*c));
  }
  if (n && *n > std::numeric_limits<std::int32_t>::max()) {
    return Status::invalid("input 'points': expected fewer than 2^31 points, got " + std::to_string(*n));
  }
  return {};
}

inline Status check_grid(const float* size, const float* range) {
  constexpr const char* kAxes[] = {"x", "y", "z"};
  for (int axis = 0; axis < 3; ++axis) {
    if (!(size[axis] > 0) || std::isinf(size[axis])) {
      return Status::invalid("input 'size': expected positive finite sizes, got " + std::to_string(size[axis]) +
                             " for " + kAxes[axis]);
    }
    if (range && !std::isfinite(range[axis])) {
      return Status::invalid("input 'range': expected a finite lower corner, got " + std::to_string(range[axis]) +
                             " for " + kAxes[axis]);
    }
  }
  return {};
}

/// The error of the first row whose batch number is none.
inline Status check_batch_numbers(Context& context, const float* points, std::int64_t n, std::int64_t c) {
  std::atomic<std::int64_t> first_wrong = n;
  context.parallel_for(n, 16384, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t row = begin;
    while (row < end && is_batch_number(points[row * c])) ++row;
    std::int64_t other = first_wrong.load();
    while (row < end && row < other && !first_wrong.compare_exchange_weak(other, row)) {
    }
  });
  const std::int64_t row = first_wrong.load();
  if (row == n) return {};
  char number[32];
  std::snprintf(number, sizeof number, "%g", static_cast<double>(points[row * c]));
  return Status::invalid("input 'points': row " + std::to_string(row) + " has the batch number " + number +
                         ", expected an integer in 0.." + std::to_string(kBatches - 1));
}

}  // namespace opgate::ops::voxelize

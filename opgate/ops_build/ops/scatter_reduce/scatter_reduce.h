#pragma once

#include <limits>

#include "reductions/formula.h"

OPGATE_OP(ScatterReduce,
          "<T: f16|bf16|f32|f64> ScatterReduce(x: T[n,...], index: i64[n], dim_size: const i64[]; "
          "reduce: {sum|mean|max|min}=sum) -> (y: T[dim_size,...])",
          "Reduces the rows of equal index to one: their sum, mean, greatest or least. An index without rows gives 0.")

namespace opgate::ops::scatter_reduce {

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes&, const KnownSizes& sizes) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    if (const auto n = sizes["n"]; n && *n > kMost)
      return Status::invalid("input 'x': expected fewer than 2^31 rows, got " + std::to_string(*n));
    if (const auto size = sizes["dim_size"]; size && *size > kMost)
      return Status::invalid("input 'dim_size': expected less than 2^31, got " + std::to_string(*size));
    return {};
  }
};

}  // namespace opgate::ops::scatter_reduce

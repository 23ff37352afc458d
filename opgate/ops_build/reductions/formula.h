// What SegmentReduce and ScatterReduce have in common, for every device.
#pragma once

#include <cmath>
#include <string>
#include <type_traits>

#include "kernel_toolkit/numbers.h"
#include "kernel_toolkit/op.h"

namespace opgate::ops::segment_reduce {

/// Adds. The mean is the sum divided by the number of rows.
struct Sum {
  static constexpr double kStart = 0;
  static constexpr bool kNanWins = false;

  template <typename V>
  OPGATE_HOST_DEVICE static V combine(V a, V b) {
    return a + b;
  }
  template <typename V>
  OPGATE_HOST_DEVICE static V combine_number(V a, V b) {
    return a + b;
  }
};

/// The greatest. A NaN wins.
struct Max {
  static constexpr double kStart = -INFINITY;
  static constexpr bool kNanWins = true;

  template <typename V>
  OPGATE_HOST_DEVICE static V combine(V a, V b) {
    return (b > a) | (b != b) ? b : a;
  }
  /// The same where b isn't NaN, in one instruction.
  template <typename V>
  OPGATE_HOST_DEVICE static V combine_number(V a, V b) {
    return b > a ? b : a;
  }
};

/// The least. A NaN wins.
struct Min {
  static constexpr double kStart = INFINITY;
  static constexpr bool kNanWins = true;

  template <typename V>
  OPGATE_HOST_DEVICE static V combine(V a, V b) {
    return (b < a) | (b != b) ? b : a;
  }
  template <typename V>
  OPGATE_HOST_DEVICE static V combine_number(V a, V b) {
    return b < a ? b : a;
  }
};

/// The type of a value over many rows. A sum is in f64, to which the sums of a few rows each are added.
template <typename T, typename Op>
using Total = std::conditional_t<std::is_same_v<Op, Sum>, double, ComputeType<T>>;

/// So many rows are summed in the compute type.
inline constexpr int kRowsTogether = 64;

/// Calls run.operator()<Op>(is_mean) for the attribute `reduce`.
template <typename Run>
Status with_reduction(const Attributes& attributes, const Run& run) {
  const std::string reduce = attributes.text("reduce");
  if (reduce == "max") return run.template operator()<Max>(false);
  if (reduce == "min") return run.template operator()<Min>(false);
  return run.template operator()<Sum>(reduce == "mean");
}

/// The number of elements of a row of x.
inline std::int64_t columns_of(const Tensor& x) {
  std::int64_t columns = 1;
  for (std::size_t i = 1; i < x.dims().size(); ++i) columns *= x.dim(i);
  return columns;
}

}  // namespace opgate::ops::segment_reduce

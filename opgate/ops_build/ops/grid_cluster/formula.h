// The cell of a point, for every device.
#pragma once

#include <cmath>
#include <cstdint>

#include "signature/dtype.h"

namespace opgate::ops::grid_cluster {

/// The quotient as an integer, rounded toward zero. A quotient that isn't finite, or that i64 doesn't hold, gives the
/// lowest i64, as x86 does.
template <typename T>
OPGATE_HOST_DEVICE std::int64_t truncated(T quotient) {
  constexpr T kLimit = 9223372036854775808.0;  // 2^63
  return quotient >= -kLimit && quotient < kLimit ? static_cast<std::int64_t>(quotient) : INT64_MIN;
}

/// a + b and a * b. They wrap around.
OPGATE_HOST_DEVICE inline std::int64_t plus(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
OPGATE_HOST_DEVICE inline std::int64_t times(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

/// The number of cells on an axis.
template <typename T>
OPGATE_HOST_DEVICE std::int64_t cells(T start, T end, T size) {
  return plus(truncated((end - start) / size), 1);
}

}  // namespace opgate::ops::grid_cluster

#pragma once

#include <cmath>
#include <string>

#include "kernel_toolkit/op.h"

OPGATE_OP(SlidingWindow,
          "<T: f32|f64> SlidingWindow(x: T[n,t]; size: int, step: int=1, ddof: int=0) "
          "-> (mean: T[n,max(0,1+(t-size)/step)], std?: T[n,max(0,1+(t-size)/step)], "
          "min?: T[n,max(0,1+(t-size)/step)], max?: T[n,max(0,1+(t-size)/step)])",
          "Mean, standard deviation, least and greatest value of each window of a series.")

namespace opgate::ops::sliding_window {

inline Status check_attributes(const Attributes& attributes) {
  if (attributes.integer("size") < 1) return attributes.refuse("size", "1 or more");
  if (attributes.integer("step") < 1) return attributes.refuse("step", "1 or more");
  const std::int64_t ddof = attributes.integer("ddof");
  return ddof == 0 || ddof == 1 ? Status() : attributes.refuse("ddof", "0 or 1");
}

/// The lesser and the greater of two values. A NaN stays, whichever of the two it is.
template <typename T>
OPGATE_HOST_DEVICE T lesser(T a, T b) {
  return a < b || a != a ? a : b;
}
template <typename T>
OPGATE_HOST_DEVICE T greater(T a, T b) {
  return a > b || a != a ? a : b;
}

/// What is known of the values of a window. `squares` is the sum of the squares of their distances from the mean.
template <typename T>
struct Summary {
  double count, mean, squares;
  T least, greatest;
};

/// Where the outputs go. All but `mean` may be null.
template <typename T>
struct Written {
  T *mean, *std, *min, *max;

  /// The outputs from window `first` on.
  Written from(std::int64_t first) const {
    const auto moved = [first](T* output) { return output ? output + first : nullptr; };
    return {mean + first, moved(std), moved(min), moved(max)};
  }

  OPGATE_HOST_DEVICE void put(std::int64_t at, const Summary<T>& summary, double ddof) const {
    mean[at] = static_cast<T>(summary.mean);
    // A rounding error may make the squares negative. A NaN stays one.
    const double squares = summary.squares < 0 ? 0 : summary.squares;
    // A single value has no deviation from others: 0 / 0 with ddof 1.
    if (std) std[at] = static_cast<T>(sqrt(squares / (summary.count - ddof)));
    if (min) min[at] = summary.least;
    if (max) max[at] = summary.greatest;
  }
};

template <typename T>
Written<T> outputs_of(Outputs& out) {
  const auto optional = [&](const char* name) { return out.has(name) ? out[name].template data<T>() : nullptr; };
  return {out["mean"].data<T>(), optional("std"), optional("min"), optional("max")};
}

}  // namespace opgate::ops::sliding_window

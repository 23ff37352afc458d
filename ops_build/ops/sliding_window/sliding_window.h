#pragma once

#include <cmath>
#include <string>

#include "core/op.h"

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

/// What is known of some values. Two of them can be merged: T. Chan, G. Golub, R. LeVeque, "Updating Formulae and a
/// Pairwise Algorithm for Computing Sample Variances", 1979. A NaN makes everything NaN.
struct Summary {
  double count, sum, squares;  ///< `squares` is the sum of the squares of the distances from the mean
  double least, greatest;

  OPGATE_HOST_DEVICE static Summary of(double x) { return {1, x, x - x, x, x}; }

  // A NaN stays, whichever of the two it is.
  OPGATE_HOST_DEVICE static double lesser(double a, double b) { return a < b || a != a ? a : b; }
  OPGATE_HOST_DEVICE static double greater(double a, double b) { return a > b || a != a ? a : b; }

  OPGATE_HOST_DEVICE Summary merged(const Summary& other) const {
    const double all = count + other.count, apart = other.sum / other.count - sum / count;
    return {all, sum + other.sum, squares + other.squares + apart * apart * (count * other.count / all),
            lesser(least, other.least), greater(greatest, other.greatest)};
  }
};

/// Where the outputs go. All but `mean` may be null.
template <typename T>
struct Written {
  T *mean, *std, *min, *max;

  OPGATE_HOST_DEVICE void put(std::int64_t at, const Summary& summary, double ddof) const {
    mean[at] = static_cast<T>(summary.sum / summary.count);
    // A single value has no deviation from others: 0 / 0 with ddof 1.
    if (std) std[at] = static_cast<T>(sqrt(summary.squares / (summary.count - ddof)));
    if (min) min[at] = static_cast<T>(summary.least);
    if (max) max[at] = static_cast<T>(summary.greatest);
  }
};

template <typename T>
Written<T> outputs_of(Outputs& out) {
  const auto optional = [&](const char* name) { return out.has(name) ? out[name].template data<T>() : nullptr; };
  return {out["mean"].data<T>(), optional("std"), optional("min"), optional("max")};
}

}  // namespace opgate::ops::sliding_window

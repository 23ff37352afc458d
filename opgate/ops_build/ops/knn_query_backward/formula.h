// What a neighbour adds to the gradients, for every device.
#pragma once

#include <cmath>

#include "signature/dtype.h"

namespace opgate::ops::knn_query_backward {

/// Whether a distance has a gradient: a missing neighbour (infinite) has none, and at 0 it is taken to be 0.
template <typename T>
OPGATE_HOST_DEVICE bool has_gradient(T distance) {
  return distance > 0 && distance < INFINITY;
}

/// The gradient with respect to one coordinate of the point. That of the query is its opposite.
template <typename T>
OPGATE_HOST_DEVICE double part(T grad, T distance, T point, T query) {
  return static_cast<double>(grad) *
         ((static_cast<double>(point) - static_cast<double>(query)) / static_cast<double>(distance));
}

}  // namespace opgate::ops::knn_query_backward

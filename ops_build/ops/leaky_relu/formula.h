// LeakyRelu of one element, for every device.
#pragma once

#include "core/dtype.h"

namespace opgate::ops {

template <typename C>
struct Leaky {
  C alpha;

  OPGATE_HOST_DEVICE C operator()(C x) const {
    const C scaled = alpha * x;  // on either side: a product in one branch keeps GCC from vectorizing
    return x < 0 ? scaled : x;
  }
};

}  // namespace opgate::ops

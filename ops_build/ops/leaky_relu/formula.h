// LeakyRelu of one element, for every device.
#pragma once

#include "core/dtype.h"

namespace opgate::ops {

template <typename C>
struct Leaky {
  C alpha;

  OPGATE_HOST_DEVICE C operator()(C x) const { return x < 0 ? alpha * x : x; }
};

}  // namespace opgate::ops

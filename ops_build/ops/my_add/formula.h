// 2 a + b of one element, for every device.
#pragma once

#include <type_traits>

#include "core/dtype.h"

namespace opgate::ops {

struct TwiceAPlusB {
  template <typename C>
  OPGATE_HOST_DEVICE C operator()(C a, C b) const {
    if constexpr (std::is_integral_v<C>) {
      // Integers wrap around as NumPy's do: the sum is formed in the unsigned type.
      using U = std::make_unsigned_t<C>;
      return static_cast<C>(U{2} * static_cast<U>(a) + static_cast<U>(b));
    } else {
      return C{2} * a + b;
    }
  }
};

}  // namespace opgate::ops

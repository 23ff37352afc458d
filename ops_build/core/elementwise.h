// Loops over elements for kernels, in plain C++ that compilers vectorize.
#pragma once

#include <cmath>
#include <concepts>

#include "kernel.h"
#include "numbers.h"

namespace opgate {

/// Elements that one thread should take at least: smaller pieces cost more in hand-over than they save.
inline constexpr std::int64_t kElementGrain = 16384;

/// out[i] = function(in[i]...) for `count` elements of equal type, computed in ComputeType<T>.
template <typename T, typename Function, std::convertible_to<const T*>... In>
void map_elements(Context& context, std::int64_t count, T* out, Function function, In... in) {
  using C = ComputeType<T>;
  context.parallel_for(count, kElementGrain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) out[i] = static_cast<T>(function(static_cast<C>(in[i])...));
  });
}

}  // namespace opgate

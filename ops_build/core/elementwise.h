// Elementwise kernels on the CPU, as loops that compilers vectorize.
#pragma once

#include "elementary.h"
#include "elementwise_kernel.h"

namespace opgate {

/// The fewest elements for a thread. Handing a smaller piece to another thread costs more time than it saves.
inline constexpr std::int64_t kElementGrain = 16384;

/// out[i] = function(in[i]...) for `count` elements, computed in ComputeType<T>.
template <typename T, typename Function, std::convertible_to<const T*>... In>
Status map_elements(Context& context, std::int64_t count, T* out, Function function, In... in) {
  using C = ComputeType<T>;
  context.parallel_for(count, kElementGrain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) out[i] = static_cast<T>(function(static_cast<C>(in[i])...));
  });
  return {};
}

struct CpuLoop {
  template <typename... Arguments>
  static Status run(Arguments&&... arguments) {
    return map_elements(std::forward<Arguments>(arguments)...);
  }
};

/// The kernel of an elementwise op: OPGATE_CPU_KERNEL(Tag, opgate::CpuElementwise<Formula>).
template <typename Formula>
using CpuElementwise = ElementwiseKernel<Formula, CpuLoop>;

}  // namespace opgate

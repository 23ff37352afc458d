// Elementwise kernels on the CPU, as loops that compilers vectorize.
#pragma once

#include "convert.h"
#include "elementary.h"
#include "elementwise_kernel.h"

namespace opgate {

/// The fewest elements for a thread. Handing a smaller piece to another thread costs more time than it saves.
inline constexpr std::int64_t kElementGrain = 16384;

namespace elementwise {

/// 16-bit numbers are converted to float so many at a time: the floats stay in the first cache.
inline constexpr std::int64_t kBlock = 512;

/// out[i] = function(in[i]...) for i in [begin, end). The function is a copy of its own: what it holds can't be part of
/// `out`, and the compiler needn't load it again for each element. A call in the loop would keep it from being
/// vectorized, so all calls are inlined.
template <typename T, typename Function, typename... In>
[[gnu::flatten]] void run(std::int64_t begin, std::int64_t end, T* out, const Function function, const In*... in) {
  for (std::int64_t i = begin; i < end; ++i) out[i] = function(in[i]...);
}

/// The same for 16-bit numbers, computed as floats. `k` numbers the inputs.
template <typename T, typename Function, std::size_t... k, typename... In>
[[gnu::flatten]] void run_blocks(std::index_sequence<k...>, std::int64_t begin, std::int64_t end, T* out,
                                 const Function function, const In*... in) {
  alignas(64) float wide[sizeof...(In) + 1][kBlock];
  for (std::int64_t first = begin; first < end; first += kBlock) {
    const std::int64_t count = std::min(kBlock, end - first);
    (widen(in + first, wide[k], count), ...);
    float* const result = wide[sizeof...(In)];
    for (std::int64_t i = 0; i < count; ++i) result[i] = function(wide[k][i]...);
    narrow(result, out + first, count);
  }
}

}  // namespace elementwise

/// out[i] = function(in[i]...) for `count` elements, computed in ComputeType<T>.
template <typename T, typename Function, std::convertible_to<const T*>... In>
Status map_elements(Context& context, std::int64_t count, T* out, Function function, In... in) {
  context.parallel_for(count, kElementGrain, [=](std::int64_t begin, std::int64_t end) {
    if constexpr (std::is_same_v<ComputeType<T>, T>) {
      elementwise::run(begin, end, out, function, static_cast<const T*>(in)...);
    } else {
      elementwise::run_blocks(std::index_sequence_for<In...>(), begin, end, out, function,
                              static_cast<const T*>(in)...);
    }
  });
  return {};
}

struct CpuLoop {
  template <typename... Arguments>
  static Status run(Arguments&&... arguments) {
    return map_elements(std::forward<Arguments>(arguments)...);
  }
};

/// The kernel of an elementwise op.
template <typename Formula>
using CpuElementwise = ElementwiseKernel<Formula, CpuLoop>;

}  // namespace opgate

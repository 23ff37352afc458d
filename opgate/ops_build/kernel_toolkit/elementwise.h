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

/// out[i] = function(in[i]...) for i in [begin, end), or out[k][i] for result k of several. The function is a copy of
/// its own: what it holds can't be part of an output, and the compiler needn't load it again for each element. A call
/// in the loop would keep it from being vectorized, so all calls are inlined.
template <typename T, typename Function, typename... In>
[[gnu::flatten]] void run(std::int64_t begin, std::int64_t end, T* out, const Function function, const In*... in) {
  for (std::int64_t i = begin; i < end; ++i) out[i] = result_of<0>(function(in[i]...));
}

template <std::size_t... k, typename T, typename Function, typename... In>
[[gnu::flatten]] void run(std::index_sequence<k...>, std::int64_t begin, std::int64_t end,
                          const std::array<T*, sizeof...(k)> out, const Function function, const In*... in) {
  for (std::int64_t i = begin; i < end; ++i) {
    const auto values = function(in[i]...);
    ((out[k][i] = result_of<k>(values)), ...);
  }
}

/// The same for 16-bit numbers, computed as floats. `i` numbers the inputs, `k` the outputs.
template <std::size_t... i, std::size_t... k, typename T, typename Function, typename... In>
[[gnu::flatten]] void run_blocks(std::index_sequence<i...>, std::index_sequence<k...>, std::int64_t begin,
                                 std::int64_t end, const std::array<T*, sizeof...(k)> out, const Function function,
                                 const In*... in) {
  alignas(64) float wide[sizeof...(In)][kBlock], results[sizeof...(k)][kBlock];
  for (std::int64_t first = begin; first < end; first += kBlock) {
    const std::int64_t count = std::min(kBlock, end - first);
    (widen(in + first, wide[i], count), ...);
    for (std::int64_t at = 0; at < count; ++at) {
      const auto values = function(wide[i][at]...);
      ((results[k][at] = result_of<k>(values)), ...);
    }
    (narrow(results[k], out[k] + first, count), ...);
  }
}

template <std::size_t... i, typename T, typename Function, typename... In>
void run_blocks(std::index_sequence<i...> inputs, std::int64_t begin, std::int64_t end, T* out, const Function function,
                const In*... in) {
  run_blocks(inputs, std::index_sequence<0>(), begin, end, std::array<T*, 1>{out}, function, in...);
}

}  // namespace elementwise

/// out[k][i] = result k of function(in[i]...) for `count` elements, computed in ComputeType<T>.
template <typename T, std::size_t results, typename Function, std::convertible_to<const T*>... In>
Status map_elements(Context& context, std::int64_t count, const std::array<T*, results> out, Function function,
                    In... in) {
  context.parallel_for(count, kElementGrain, [=](std::int64_t begin, std::int64_t end) {
    constexpr auto outputs = std::make_index_sequence<results>();
    if constexpr (!std::is_same_v<ComputeType<T>, T>) {
      elementwise::run_blocks(std::index_sequence_for<In...>(), outputs, begin, end, out, function,
                              static_cast<const T*>(in)...);
    } else if constexpr (results == 1) {
      elementwise::run(begin, end, out[0], function, static_cast<const T*>(in)...);
    } else {
      elementwise::run(outputs, begin, end, out, function, static_cast<const T*>(in)...);
    }
  });
  return {};
}

template <typename T, typename Function, std::convertible_to<const T*>... In>
Status map_elements(Context& context, std::int64_t count, T* out, Function function, In... in) {
  return map_elements(context, count, std::array<T*, 1>{out}, function, in...);
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

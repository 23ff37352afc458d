// Reduces rows on CUDA.
#pragma once

#include "formula.h"
#include "kernel_toolkit/elementwise.cuh"

namespace opgate::ops::segment_reduce {

inline constexpr int kThreads = 256;

/// Where the rows of an output are, by Rows: `rows.range(output)` is their begin and end among all rows, and
/// `rows.row(i)` the row of x. With 32 lanes a warp computes a number of the output, otherwise a thread does.
template <typename Op, int lanes, typename T, typename Rows>
__global__ void __launch_bounds__(kThreads)
    reduce_rows(std::int64_t outputs, std::int64_t columns, const T* x, Rows rows, bool mean, T* y) {
  using C = ComputeType<T>;
  using A = Total<T, Op>;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const std::int64_t element = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / lanes;
  const bool is_there = element < outputs * columns;  // all lanes of a warp go on, because they shuffle
  const std::int64_t column = is_there ? element % columns : 0;
  const auto range = is_there ? rows.range(element / columns) : decltype(rows.range(0)){0, 0};
  A total = static_cast<A>(Op::kStart);
  for (std::int64_t first = range.begin + lane; first < range.end; first += kRowsTogether * lanes) {
    C part = static_cast<C>(Op::kStart);
    const std::int64_t last = first + kRowsTogether * lanes;
    for (std::int64_t i = first; i < range.end && i < last; i += lanes) {
      part = Op::combine(part, static_cast<C>(x[rows.row(i) * columns + column]));
    }
    total = Op::combine(total, static_cast<A>(part));
  }
  if constexpr (lanes > 1) {
    for (int bits = lanes / 2; bits > 0; bits /= 2)
      total = Op::combine(total, __shfl_xor_sync(0xffffffffu, total, bits));
  }
  if (!is_there || lane > 0) return;
  const std::int64_t count = range.end - range.begin;
  if (mean) total /= static_cast<A>(count);
  y[element] = static_cast<T>(static_cast<C>(count > 0 ? total : A(0)));
}

/// Chooses how many threads compute a number: few columns don't fill a warp.
template <typename Op, typename T, typename Rows>
Status launch(Context& context, std::int64_t outputs, std::int64_t columns, const T* x, Rows rows, bool mean, T* y) {
  if (outputs * columns == 0) return {};
  if (columns >= 16) {
    reduce_rows<Op, 1><<<blocks_for(outputs * columns, kThreads), kThreads, 0, stream_of(context)>>>(outputs, columns,
                                                                                                     x, rows, mean, y);
  } else {
    reduce_rows<Op, 32><<<blocks_for(outputs * columns, kThreads / 32), kThreads, 0, stream_of(context)>>>(
        outputs, columns, x, rows, mean, y);
  }
  return launched();
}

}  // namespace opgate::ops::segment_reduce

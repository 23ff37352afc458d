#include "scatter_reduce.h"

#include <numeric>

#include "reductions/rows.h"

namespace opgate::ops::scatter_reduce {
namespace {

using segment_reduce::columns_of;
using segment_reduce::kWidth;
using segment_reduce::Sum;

struct Cpu : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n"), size = in.size("dim_size"), columns = columns_of(in["x"]);
    const auto* const index = in["index"].data<std::int64_t>();
    for (std::int64_t i = 0; i < n; ++i) {
      if (index[i] < 0 || index[i] >= size) {
        return Status::invalid("input 'index': element " + std::to_string(i) + " is " + std::to_string(index[i]) +
                               ", expected 0.." + std::to_string(size - 1));
      }
    }
    if (columns == 0 || size == 0) return {};
    const T* const x = in["x"].data<T>();
    T* const y = out["y"].data<T>();
    return segment_reduce::with_reduction(attributes, [&]<typename Op>(bool mean) -> Status {
      if (columns < kNarrow) {
        const auto run = columns == 1   ? &in_order<1, Op, T>
                         : columns == 2 ? &in_order<2, Op, T>
                         : columns == 3 ? &in_order<3, Op, T>
                         : columns == 4 ? &in_order<4, Op, T>
                                        : &in_order<0, Op, T>;
        run(context, x, index, n, size, columns, mean, y);
      } else {
        by_output<Op>(context, x, index, n, size, columns, mean, y);
      }
      return {};
    });
  }

 private:
  static constexpr std::int64_t kNarrow = 8;

  /// Goes over the rows in their order, in one thread: for few columns this takes less time than sorting them. K is the
  /// number of columns, or 0 if it is known only to `all`.
  template <int K, typename Op, typename T>
  static void in_order(Context& context, const T* x, const std::int64_t* index, std::int64_t n, std::int64_t size,
                       std::int64_t all, bool mean, T* y) {
    using C = ComputeType<T>;
    using A = segment_reduce::Total<T, Op>;
    const std::int64_t columns = K ? K : all;
    A* const totals = context.scratch<A>(size * columns).data();
    std::fill_n(totals, size * columns, static_cast<A>(Op::kStart));
    const bool counted = mean || !std::is_same_v<Op, Sum>;
    std::uint32_t* const counts = context.scratch<std::uint32_t>(counted ? size : 0).data();
    if (counted) std::fill_n(counts, size, 0u);
    for (std::int64_t i = 0; i < n; ++i) {
      A* const total = totals + index[i] * columns;
      const T* const from = x + i * columns;
      for (std::int64_t k = 0; k < columns; ++k) {
        total[k] = Op::combine(total[k], static_cast<A>(static_cast<C>(from[k])));
      }
    }
    for (std::int64_t i = 0; counted && i < n; ++i) ++counts[index[i]];
    context.parallel_for(size, kElementGrain / columns, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; counted && row < end; ++row) {
        for (std::int64_t i = row * columns; i < (row + 1) * columns; ++i) {
          if (counts[row] == 0) totals[i] = 0;
          if (mean && counts[row] > 0) totals[i] /= static_cast<A>(counts[row]);
        }
      }
      for (std::int64_t i = begin * columns; i < end * columns; ++i) y[i] = static_cast<T>(static_cast<C>(totals[i]));
    });
  }

  /// Sorts the rows by their index, and then reduces the rows of each output.
  template <typename Op, typename T>
  static void by_output(Context& context, const T* x, const std::int64_t* index, std::int64_t n, std::int64_t size,
                        std::int64_t columns, bool mean, T* y) {
    const std::span<std::uint32_t> ends = context.scratch<std::uint32_t>(size + 1);
    const std::span<std::uint32_t> rows = context.scratch<std::uint32_t>(n);
    std::uint32_t* const end = ends.data() + 1;  // of each output, and before it the begin of the first one
    std::fill(ends.begin(), ends.end(), 0u);
    for (std::int64_t i = 0; i < n; ++i) {
      if (index[i] + 1 < size) ++end[index[i] + 1];
    }
    std::partial_sum(ends.begin(), ends.end(), ends.begin());
    // Now end[i] is where output i begins. It moves on with each row, to where the output ends.
    for (std::int64_t i = 0; i < n; ++i) rows[end[index[i]]++] = static_cast<std::uint32_t>(i);
    const std::int64_t parts = (columns + kWidth - 1) / kWidth;
    const std::int64_t work = std::max<std::int64_t>(1, n / size) * std::min(columns, kWidth);
    context.parallel_for(
        size * parts, std::max<std::int64_t>(1, kElementGrain / work), [&](std::int64_t begin, std::int64_t last) {
          for (std::int64_t i = begin; i < last; ++i) {
            const std::int64_t output = parts == 1 ? i : i / parts, column = (i - output * parts) * kWidth;
            const std::uint32_t first = output ? end[output - 1] : 0;
            const auto row = [&](std::int64_t k) {
              return x + static_cast<std::int64_t>(rows[first + static_cast<std::size_t>(k)]) * columns + column;
            };
            segment_reduce::reduce_rows<Op>(static_cast<std::int64_t>(end[output] - first),
                                            std::min(kWidth, columns - column), 1, mean, row,
                                            y + output * columns + column);
          }
        });
  }
};

}  // namespace
}  // namespace opgate::ops::scatter_reduce

OPGATE_CPU_KERNEL(ScatterReduce, opgate::ops::scatter_reduce::Cpu)

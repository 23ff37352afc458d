// The kernel of the formulas over rows that `opgate build` writes from Python, on every device.
//
// A formula computes one row at a time. It is a template over the type V that it computes in and over a Row, which
// gives it the inputs of the row and runs functions of a column over all columns:
//
//   row.length()                       the number of columns
//   row.template values<k>()           input k, for each column: values[i]
//   row.template value<k>()            input k, one number for the row
//   row.template reduce<kinds...>(f)   the sums, maxima or minima of f(i), which gives one value or Results
//   row.template keep<k>(f)            f(i) for each column, which is computed once where memory costs less
//   row.template write<k...>(f)        f(i) becomes the outputs k
//   row.template put<k>(value)         the number of the row in output k
//   row.template add<k...>(f)          f(i) is added to output k[i], which is a sum over the rows
#pragma once

#include "elementwise_kernel.h"
#include "formula.h"

#ifdef __CUDACC__
#define OPGATE_OF_ROW __device__
#else
#define OPGATE_OF_ROW
#endif

namespace opgate::rows {

/// What a tensor has: a number for each column of each row, one for each row, or one for each column.
enum class Over { elements, row, column };

enum class Reduction { sum, maximum, minimum };

/// The reduction of no values: that of a row without columns.
template <Reduction kind, typename V>
OPGATE_HOST_DEVICE constexpr V neutral() {
  return kind == Reduction::sum ? V(0) : V(kind == Reduction::maximum ? -INFINITY : INFINITY);
}

template <Reduction kind, typename V>
OPGATE_HOST_DEVICE V combined(V a, V b) {
  if constexpr (kind == Reduction::sum)
    return a + b;
  else if constexpr (kind == Reduction::maximum)
    return formula::maximum(a, b);
  else
    return formula::minimum(a, b);
}

/// What a reduction of `count` kinds gives: one value or several.
template <typename V, std::size_t count>
using Reduced = std::conditional_t<count == 1, V, Results<V, count>>;

/// Value k of those that a reduction gives, to write it.
template <std::size_t k, typename V>
OPGATE_HOST_DEVICE V& place_of(V& value) {
  return value;
}
template <std::size_t k, typename V, std::size_t count>
OPGATE_HOST_DEVICE V& place_of(Results<V, count>& results) {
  return results.values[k];
}

/// The tensors of a call. `Rows` says with kInputs and kOutputs what each has, and with kLength which size of the
/// signature is the number of columns.
template <typename T, typename Rows>
struct Tensors {
  static constexpr std::size_t kInputs = std::size(Rows::kInputs), kOutputs = std::size(Rows::kOutputs);

  const T* in[kInputs];
  T* out[kOutputs];
  std::int64_t count = 1, length;

  Tensors(const Inputs& inputs, Outputs& outputs) : length(inputs.size(Rows::kLength)) {
    for (std::size_t k = 0; k < kInputs; ++k) in[k] = inputs.at(k).template data<T>();
    for (std::size_t k = 0; k < kOutputs; ++k) out[k] = outputs.at(k).template data<T>();
    count = rows_of(inputs);
  }

  static std::int64_t rows_of(const Inputs& inputs) {
    std::size_t first = 0;
    while (Rows::kInputs[first] == Over::column) ++first;
    const Tensor& tensor = inputs.at(first);
    const std::size_t rank = static_cast<std::size_t>(tensor.rank()) - (Rows::kInputs[first] == Over::elements ? 1 : 0);
    std::int64_t count = 1;
    for (std::size_t axis = 0; axis < rank; ++axis) count *= tensor.dim(axis);
    return count;
  }
};

/// How many outputs are sums over the rows.
template <typename Rows>
constexpr std::size_t columns_of() {
  std::size_t count = 0;
  for (const Over over : Rows::kOutputs) count += over == Over::column ? 1 : 0;
  return count;
}

/// The kernel of an op over rows. `Rows` has a function choose(attributes, length, run), which calls run(formula) with
/// one of its formulas. `Loop` runs a formula over all rows, on one device.
template <typename Rows, typename Loop>
struct Kernel : CheckOf<Rows> {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Tensors<T, Rows> tensors(in, out);
    return Rows::choose(attributes, tensors.length,
                        [&](const auto& formula) { return Loop::run(context, tensors, formula); });
  }
};

}  // namespace opgate::rows

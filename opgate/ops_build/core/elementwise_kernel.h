// The kernel that all elementwise ops share, on every device.
#pragma once

#include <concepts>
#include <utility>

#include "call/kernel.h"
#include "numbers.h"

namespace opgate {

/// The number of values that a formula takes.
template <typename Formula, typename V, std::size_t count = 1>
constexpr std::size_t arity_of() {
  static_assert(count <= 8, "a formula takes values of one type, 1 to 8 of them");
  constexpr auto takes = []<std::size_t... i>(std::index_sequence<i...>) {
    return std::invocable<const Formula&, decltype(static_cast<void>(i), V())...>;
  };
  if constexpr (takes(std::make_index_sequence<count>()))
    return count;
  else
    return arity_of<Formula, V, count + 1>();
}

/// A kernel that computes element i of the output from the elements i of the inputs. All tensors have one dtype and one
/// shape. `Formula` (elementary.h) is constructed from the attributes if it has a constructor for them. `Loop` runs it
/// over all elements, on one device.
template <typename Formula, typename Loop>
struct ElementwiseKernel {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    constexpr std::size_t arity = arity_of<Formula, ComputeType<T>>();
    if (in.count() != arity || out.count() != 1) {
      return Status::internal("the formula takes " + std::to_string(arity) +
                              " values and gives one; the signature has " + std::to_string(in.count()) +
                              " inputs and " + std::to_string(out.count()) + " outputs");
    }
    return run<T>(context, in, formula_of(attributes), out.at(0), std::make_index_sequence<arity>());
  }

 private:
  static Formula formula_of(const Attributes& attributes) {
    if constexpr (std::constructible_from<Formula, const Attributes&>)
      return Formula(attributes);
    else
      return Formula{};
  }

  template <typename T, std::size_t... i>
  static Status run(Context& context, const Inputs& in, const Formula& formula, const MutableTensor& out,
                    std::index_sequence<i...>) {
    return Loop::run(context, out.size(), out.data<T>(), formula, in.at(i).template data<T>()...);
  }
};

}  // namespace opgate

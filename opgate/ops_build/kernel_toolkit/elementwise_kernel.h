// The kernel that all elementwise ops share, on every device.
#pragma once

#include <concepts>
#include <utility>

#include "numbers.h"
#include "op.h"

namespace opgate {

/// The number of values that a formula takes.
template <typename Formula, typename V, std::size_t count = 1>
constexpr std::size_t arity_of() {
  constexpr auto takes = []<std::size_t... i>(std::index_sequence<i...>) {
    return std::invocable<const Formula&, decltype(static_cast<void>(i), V())...>;
  };
  constexpr bool found = takes(std::make_index_sequence<count>());
  static_assert(found || count < 8, "a formula takes values of one type, 1 to 8 of them");
  if constexpr (found || count == 8)
    return count;
  else
    return arity_of<Formula, V, count + 1>();
}

/// The `check` of a formula that has one.
template <typename Formula>
struct CheckOf {};
template <NamesCheck Formula>
struct CheckOf<Formula> {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    return Formula::check(attributes, sizes);
  }
};

/// A kernel that computes element i of the output from the elements i of the inputs. All tensors have one dtype and one
/// shape. `Formula` (elementary.h) is constructed from the attributes if it has a constructor for them. Or it has a
/// static function choose(attributes, run), which calls run(formula) with one of several formulas. `Loop` runs a
/// formula over all elements, on one device.
template <typename Formula, typename Loop>
struct ElementwiseKernel : CheckOf<Formula> {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const auto run = [&](const auto& formula) { return run_all<T>(context, in, formula, out); };
    if constexpr (requires { Formula::choose(attributes, run); })
      return Formula::choose(attributes, run);
    else if constexpr (std::constructible_from<Formula, const Attributes&>)
      return run(Formula(attributes));
    else
      return run(Formula{});
  }

 private:
  template <typename T, typename Chosen>
  static Status run_all(Context& context, const Inputs& in, const Chosen& formula, Outputs& out) {
    constexpr std::size_t arity = arity_of<Chosen, ComputeType<T>>();
    if (in.count() != arity || out.count() != 1) {
      return Status::internal("the formula takes " + std::to_string(arity) +
                              " values and gives one; the signature has " + std::to_string(in.count()) +
                              " inputs and " + std::to_string(out.count()) + " outputs");
    }
    const auto loop = [&]<std::size_t... i>(std::index_sequence<i...>) {
      return Loop::run(context, out.at(0).size(), out.at(0).template data<T>(), formula,
                       in.at(i).template data<T>()...);
    };
    return loop(std::make_index_sequence<arity>());
  }
};

}  // namespace opgate

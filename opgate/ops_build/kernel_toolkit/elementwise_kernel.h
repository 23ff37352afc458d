// The kernel that all elementwise ops share, on every device.
#pragma once

#include <array>
#include <concepts>
#include <utility>

#include "numbers.h"
#include "op.h"

namespace opgate {

/// V, once for each number of a pack.
template <std::size_t, typename V>
using Repeat = V;

/// The number of values that a formula takes: its kArity if it has one, else found by trying.
template <typename Formula, typename V, std::size_t count = 1>
constexpr std::size_t arity_of() {
  if constexpr (requires { Formula::kArity; }) {
    return Formula::kArity;
  } else {
    constexpr auto takes = []<std::size_t... i>(std::index_sequence<i...>) {
      return std::invocable<const Formula&, Repeat<i, V>...>;
    };
    constexpr bool found = takes(std::make_index_sequence<count>());
    static_assert(found || count < 8, "a formula takes values of one type, 1 to 8 of them");
    if constexpr (found || count == 8)
      return count;
    else
      return arity_of<Formula, V, count + 1>();
  }
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

/// Several values that a formula gives.
template <typename V, std::size_t count>
struct Results {
  V values[count];
};

/// How many values a formula gives.
template <typename Result>
inline constexpr std::size_t kResults = 1;
template <typename V, std::size_t count>
inline constexpr std::size_t kResults<Results<V, count>> = count;

template <typename Formula, typename V, std::size_t... i>
constexpr std::size_t results_of(std::index_sequence<i...>) {
  return kResults<std::decay_t<decltype(std::declval<const Formula&>()(std::declval<Repeat<i, V>>()...))>>;
}

/// Value k of those that a formula gives.
template <std::size_t k, typename V>
OPGATE_HOST_DEVICE constexpr const V& result_of(const V& value) {
  return value;
}
template <std::size_t k, typename V, std::size_t count>
OPGATE_HOST_DEVICE constexpr const V& result_of(const Results<V, count>& results) {
  return results.values[k];
}

/// A kernel that computes elements i of the outputs from the elements i of the inputs. All tensors have one dtype and
/// one shape. `Formula` (elementary.h) gives one value, or Results for several outputs. It is constructed
/// from the attributes if it has a constructor for them. Or it has a static function choose(attributes, run), which
/// calls run(formula) with one of several formulas. A function refusal<V>(), which returns a Status, may refuse
/// attributes for a type. `Loop` runs a formula over all elements, on one device.
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
    using V = ComputeType<T>;
    constexpr std::size_t arity = arity_of<Chosen, V>();
    constexpr std::size_t results = results_of<Chosen, V>(std::make_index_sequence<arity>());
    if (in.count() != arity || out.count() != results) {
      return Status::internal("the formula takes " + std::to_string(arity) + " values and gives " +
                              std::to_string(results) + "; the signature has " + std::to_string(in.count()) +
                              " inputs and " + std::to_string(out.count()) + " outputs");
    }
    if constexpr (requires { formula.template refusal<V>(); }) {
      OPGATE_RETURN_IF_ERROR(formula.template refusal<V>());
    }
    const auto loop = [&]<std::size_t... i, std::size_t... k>(std::index_sequence<i...>, std::index_sequence<k...>) {
      return Loop::run(context, out.at(0).size(), std::array<T*, results>{out.at(k).template data<T>()...}, formula,
                       in.at(i).template data<T>()...);
    };
    return loop(std::make_index_sequence<arity>(), std::make_index_sequence<results>());
  }
};

}  // namespace opgate

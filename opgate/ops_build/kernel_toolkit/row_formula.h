// Formulas over rows on the CPU: each pass over a row is a loop that compilers vectorize.
#pragma once

#include <array>
#include <vector>

#include "convert.h"
#include "elementwise.h"
#include "row_formula_kernel.h"

namespace opgate::rows {

/// The reductions of f(i) for i in [0, count). There are many partial results, because they vectorize, and a partial
/// sum adds few values before it is added to a double, so the error doesn't grow with the row.
template <typename V, Reduction... kinds, std::size_t... s, typename Function>
[[gnu::flatten]] Reduced<V, sizeof...(kinds)> reduce(std::index_sequence<s...>, std::int64_t count,
                                                     const Function function) {
  constexpr std::int64_t kBlock = 1024, kLanes = 256 / sizeof(V);
  double totals[] = {neutral<kinds, double>()...};
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, count);
    V partial[sizeof...(kinds)][kLanes];
    for (std::int64_t k = 0; k < kLanes; ++k) ((partial[s][k] = neutral<kinds, V>()), ...);
    std::int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (std::int64_t k = 0; k < kLanes; ++k) {
        const auto terms = function(i + k);
        ((partial[s][k] = combined<kinds>(partial[s][k], result_of<s>(terms))), ...);
      }
    }
    for (std::int64_t k = 0; k < end - i; ++k) {
      const auto terms = function(i + k);
      ((partial[s][k] = combined<kinds>(partial[s][k], result_of<s>(terms))), ...);
    }
    for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (std::int64_t k = 0; k < half; ++k)
        ((partial[s][k] = combined<kinds>(partial[s][k], partial[s][k + half])), ...);
    }
    ((totals[s] = combined<kinds>(totals[s], static_cast<double>(partial[s][0]))), ...);
  }
  Reduced<V, sizeof...(kinds)> result;
  ((place_of<s>(result) = static_cast<V>(totals[s])), ...);
  return result;
}

template <typename V, typename Function>
[[gnu::flatten]] void fill(std::int64_t count, V* to, const Function function) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = function(i);
}

template <std::size_t... s, typename V, typename Function>
[[gnu::flatten]] void fill(std::index_sequence<s...>, std::int64_t count, const std::array<V*, sizeof...(s)> to,
                           const Function function) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto values = function(i);
    ((to[s][i] = result_of<s>(values)), ...);
  }
}

template <std::size_t... s, typename V, typename Function>
[[gnu::flatten]] void add(std::index_sequence<s...>, std::int64_t count, const std::array<V*, sizeof...(s)> to,
                          const Function function) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto values = function(i);
    ((to[s][i] += result_of<s>(values)), ...);
  }
}

/// The rows of a thread, one after the other.
template <typename T, typename Rows>
class CpuRow {
 public:
  using V = ComputeType<T>;
  static constexpr bool kCopies = !std::is_same_v<V, T>;

  explicit CpuRow(const Tensors<T, Rows>& tensors) : tensors_(tensors) {
    const auto length = static_cast<std::size_t>(tensors.length);
    for (std::size_t k = 0; k < std::size(wide_); ++k) {
      if (!kCopies || Rows::kInputs[k] == Over::row) continue;
      wide_[k].resize(length);
      if (Rows::kInputs[k] == Over::column) widen_to(k, tensors.in[k]);
    }
    for (std::size_t k = 0; k < std::size(narrow_); ++k) {
      if (kCopies && Rows::kOutputs[k] == Over::elements) narrow_[k].resize(length);
      if (Rows::kOutputs[k] == Over::column) sums_[k].resize(length);
    }
    for (std::vector<V>& kept : kept_) kept.resize(length);
  }

  void go_to(std::int64_t row) { row_ = row; }
  std::int64_t length() const { return tensors_.length; }
  /// What add() has summed for a column output.
  std::vector<V>& sums(std::size_t k) { return sums_[k]; }

  template <std::size_t k>
  const V* values() {
    const T* const from = tensors_.in[k] + (Rows::kInputs[k] == Over::elements ? row_ * length() : 0);
    if constexpr (kCopies) {
      if (Rows::kInputs[k] == Over::elements) widen_to(k, from);
      return wide_[k].data();
    } else {
      return from;
    }
  }

  template <std::size_t k>
  V value() const {
    return static_cast<V>(tensors_.in[k][row_]);
  }

  template <Reduction... kinds, typename Function>
  Reduced<V, sizeof...(kinds)> reduce(const Function& function) const {
    return rows::reduce<V, kinds...>(std::make_index_sequence<sizeof...(kinds)>(), length(), function);
  }

  template <std::size_t k, typename Function>
  const V* keep(const Function& function) {
    fill(length(), kept_[k].data(), function);
    return kept_[k].data();
  }

  template <std::size_t... k, typename Function>
  void write(const Function& function) {
    if constexpr (sizeof...(k) == 1) {
      (fill(length(), target<k>(), function), ...);
    } else {
      fill(std::make_index_sequence<sizeof...(k)>(), length(), std::array<V*, sizeof...(k)>{target<k>()...}, function);
    }
    if constexpr (kCopies) (narrow(narrow_[k].data(), tensors_.out[k] + row_ * length(), length()), ...);
  }

  template <std::size_t k>
  void put(V value) const {
    tensors_.out[k][row_] = static_cast<T>(value);
  }

  template <std::size_t... k, typename Function>
  void add(const Function& function) {
    rows::add(std::make_index_sequence<sizeof...(k)>(), length(), std::array<V*, sizeof...(k)>{sums_[k].data()...},
              function);
  }

 private:
  void widen_to([[maybe_unused]] std::size_t k, [[maybe_unused]] const T* from) {
    if constexpr (kCopies) widen(from, wide_[k].data(), length());
  }

  template <std::size_t k>
  V* target() {
    if constexpr (kCopies)
      return narrow_[k].data();
    else
      return tensors_.out[k] + row_ * length();
  }

  const Tensors<T, Rows>& tensors_;
  std::int64_t row_ = 0;
  std::array<std::vector<V>, Tensors<T, Rows>::kInputs> wide_;
  std::array<std::vector<V>, Tensors<T, Rows>::kOutputs> narrow_, sums_;
  std::array<std::vector<V>, Rows::kKept> kept_;
};

struct CpuLoop {
  template <typename T, typename Rows, typename Formula>
  static Status run(Context& context, const Tensors<T, Rows>& tensors, const Formula& formula) {
    if constexpr (columns_of<Rows>() > 0) {
      return run_chunks(context, tensors, formula);
    } else {
      const std::int64_t grain = std::max<std::int64_t>(1, kElementGrain / (tensors.length + 1));
      context.parallel_for(tensors.count, grain, [&](std::int64_t begin, std::int64_t end) {
        CpuRow<T, Rows> row(tensors);
        run_rows(row, begin, end, formula);
      });
      return {};
    }
  }

 private:
  template <typename Row, typename Formula>
  static void run_rows(Row& row, std::int64_t begin, std::int64_t end, const Formula& formula) {
    for (std::int64_t at = begin; at < end; ++at) {
      row.go_to(at);
      formula.template operator()<typename Row::V>(row);
    }
  }

  /// With outputs that are sums over the rows. The rows are split into chunks, whose number depends on the sizes alone,
  /// and the sums of the chunks are added in their order. So the result is the same for any number of threads.
  template <typename T, typename Rows, typename Formula>
  static Status run_chunks(Context& context, const Tensors<T, Rows>& tensors, const Formula& formula) {
    const std::int64_t count = tensors.count, c = tensors.length;
    const std::int64_t most = std::clamp<std::int64_t>((std::int64_t{1} << 22) / (c + 1), 1, 256);
    const std::int64_t chunks = std::clamp<std::int64_t>(count / 16, 1, most);
    std::array<std::span<double>, Tensors<T, Rows>::kOutputs> sums;
    for (std::size_t k = 0; k < sums.size(); ++k) {
      if (Rows::kOutputs[k] == Over::column) sums[k] = context.scratch<double>(chunks * c);
    }
    const std::int64_t grain = std::max<std::int64_t>(1, kElementGrain * chunks / ((c + 1) * (count + 1)));
    context.parallel_for(chunks, grain, [&](std::int64_t begin, std::int64_t end) {
      CpuRow<T, Rows> row(tensors);
      for (std::int64_t chunk = begin; chunk < end; ++chunk) {
        run_chunk(row, count * chunk / chunks, count * (chunk + 1) / chunks, formula,
                  [&](std::size_t k) { return sums[k].data() + chunk * c; });
      }
    });
    for (std::size_t k = 0; k < sums.size(); ++k) add_chunks(context, sums[k], chunks, c, tensors.out[k]);
    return {};
  }

  template <typename T, typename Rows, typename Formula, typename Place>
  static void run_chunk(CpuRow<T, Rows>& row, std::int64_t begin, std::int64_t end, const Formula& formula,
                        const Place& place) {
    constexpr std::int64_t kBlock = 32;  // rows whose terms are added as V
    const std::int64_t c = row.length();
    for (std::size_t k = 0; k < std::size(Rows::kOutputs); ++k) {
      if (Rows::kOutputs[k] == Over::column) std::fill_n(place(k), c, 0.0);
    }
    for (std::int64_t first = begin; first < end; first += kBlock) {
      for (std::size_t k = 0; k < std::size(Rows::kOutputs); ++k) std::ranges::fill(row.sums(k), 0);
      run_rows(row, first, std::min(first + kBlock, end), formula);
      for (std::size_t k = 0; k < std::size(Rows::kOutputs); ++k) {
        if (Rows::kOutputs[k] != Over::column) continue;
        double* const to = place(k);
        const auto* const from = row.sums(k).data();
        for (std::int64_t i = 0; i < c; ++i) to[i] += static_cast<double>(from[i]);
      }
    }
  }

  template <typename T>
  static void add_chunks(Context& context, std::span<const double> sums, std::int64_t chunks, std::int64_t c, T* to) {
    if (sums.empty()) return;
    const std::int64_t grain = std::max<std::int64_t>(1, kElementGrain / chunks);
    context.parallel_for(c, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        double total = 0;
        for (std::int64_t chunk = 0; chunk < chunks; ++chunk) total += sums[static_cast<std::size_t>(chunk * c + i)];
        to[i] = static_cast<T>(static_cast<ComputeType<T>>(total));
      }
    });
  }
};

}  // namespace opgate::rows

namespace opgate {

/// The kernel of an op over rows.
template <typename Rows>
using CpuRows = rows::Kernel<Rows, rows::CpuLoop>;

}  // namespace opgate

// The gradients of the norms over the last axis, on the CPU.
#pragma once

#include "kernel_toolkit/elementwise.h"
#include "kernel_toolkit/rows.h"
#include "norms/epsilon.h"

namespace opgate::ops {

/// One row: value -> (value - mean) / deviation, or value / root for an op that doesn't subtract the mean.
template <bool centred, typename C>
auto standard_of(const C* row, std::int64_t c, double epsilon) {
  if constexpr (centred)
    return rows::standard(row, c, epsilon);
  else
    return rows::Standard<C>{C(0), C(0), rows::root_scale(row, c, epsilon)};
}

/// With z = standard(sum) and g = grad_y weight, the gradient of a row is scale (g - mean(g) - z mean(g z)) + grad_sum.
/// The term mean(g) is missing where the op doesn't subtract the mean. The gradients of weight and bias are the sums of
/// grad_y z and of grad_y over all rows.
///
/// The rows are split into chunks, whose number depends on the sizes alone, and the sums of the chunks are added in
/// their order. So the result is the same for any number of threads.
template <typename T, bool centred>
class RowGradients {
 public:
  using C = ComputeType<T>;

  RowGradients(const Inputs& in, const Attributes& attributes, Outputs& out)
      : epsilon_(attributes.number("epsilon")),
        c_(in.size("c")),
        count_(c_ == 0 ? 0 : in["sum"].size() / c_),
        grad_y_(in["grad_y"].data<T>()),
        sum_(in["sum"].data<T>()),
        weight_(data_or_null<T>(in, "weight")),
        grad_sum_(data_or_null<T>(in, "grad_sum")),
        grad_x_(out["grad_x_and_residual"].data<T>()),
        grad_weight_(data_or_null<T>(out, "grad_weight")),
        grad_bias_(centred ? data_or_null<T>(out, "grad_bias") : nullptr) {}

  Status run(Context& context) const {
    if (c_ == 0) return {};
    const std::int64_t most = std::clamp<std::int64_t>((std::int64_t{1} << 22) / c_, 1, 256);
    const std::int64_t chunks = std::clamp<std::int64_t>(count_ / 16, 1, most);
    const std::span<double> weights = context.scratch<double>(grad_weight_ ? chunks * c_ : 0);
    const std::span<double> biases = context.scratch<double>(grad_bias_ ? chunks * c_ : 0);
    context.parallel_for(chunks, std::max<std::int64_t>(1, kElementGrain * chunks / (c_ * (count_ + 1))),
                         [&](std::int64_t begin, std::int64_t end) {
                           for (std::int64_t chunk = begin; chunk < end; ++chunk) {
                             run_chunk(count_ * chunk / chunks, count_ * (chunk + 1) / chunks,
                                       grad_weight_ ? weights.data() + chunk * c_ : nullptr,
                                       grad_bias_ ? biases.data() + chunk * c_ : nullptr);
                           }
                         });
    add(context, weights, chunks, grad_weight_);
    add(context, biases, chunks, grad_bias_);
    return {};
  }

 private:
  /// Writes the gradients of rows, and adds up what they contribute to the gradients of weight and bias.
  void run_chunk(std::int64_t begin, std::int64_t end, double* weights, double* biases) const {
    constexpr std::int64_t kBlock = 32;  // rows whose terms are added as C
    rows::Buffer<T> wide_weight(weight_ ? c_ : 0), wide_sum(c_), wide_grad(c_), wide_grad_sum(grad_sum_ ? c_ : 0),
        to(c_);
    const C* const factors = weight_ ? wide_weight.read(weight_, c_) : nullptr;
    std::vector<C> block(static_cast<std::size_t>(2 * c_));
    if (weights) std::fill_n(weights, c_, 0.0);
    if (biases) std::fill_n(biases, c_, 0.0);
    for (std::int64_t first = begin; first < end; first += kBlock) {
      std::fill(block.begin(), block.end(), C(0));
      for (std::int64_t row = first; row < std::min(first + kBlock, end); ++row) {
        const std::int64_t at = row * c_;
        const C* const x = wide_sum.read(sum_ + at, c_);
        const C* const g = wide_grad.read(grad_y_ + at, c_);
        const C* const added = grad_sum_ ? wide_grad_sum.read(grad_sum_ + at, c_) : nullptr;
        const rows::Standard<C> standard = standard_of<centred>(x, c_, epsilon_);
        if (weights) add_products(standard, x, g, block.data());
        if (biases) add_values(g, block.data() + c_);
        write(standard, x, g, factors, added, to.target(grad_x_ + at));
        to.store(grad_x_ + at, c_);
      }
      for (std::int64_t i = 0; weights && i < c_; ++i) weights[i] += static_cast<double>(block.data()[i]);
      for (std::int64_t i = 0; biases && i < c_; ++i) biases[i] += static_cast<double>(block.data()[c_ + i]);
    }
  }

  void add_products(const rows::Standard<C> standard, const C* x, const C* g, C* sums) const {
    for (std::int64_t i = 0, c = c_; i < c; ++i) sums[i] += g[i] * standard(x[i]);
  }

  void add_values(const C* g, C* sums) const {
    for (std::int64_t i = 0, c = c_; i < c; ++i) sums[i] += g[i];
  }

  void write(const rows::Standard<C> standard, const C* x, const C* g, const C* weight, const C* added, C* to) const {
    const auto unweighted = [standard](auto value, auto gradient) {
      return std::array<decltype(value), 2>{gradient, gradient * standard(value)};
    };
    const auto weighted = [standard](auto value, auto gradient, auto factor) {
      const auto product = gradient * factor;
      return std::array<decltype(value), 2>{product, product * standard(value)};
    };
    const auto [plain, moment] = weight ? rows::sum<2>(c_, weighted, x, g, weight) : rows::sum<2>(c_, unweighted, x, g);
    const auto length = static_cast<double>(c_);
    const C mean = centred ? static_cast<C>(plain / length) : C(0), slope = static_cast<C>(moment / length);
    const auto gradient = [=](C value, C product) {
      return standard.scale * ((product - mean) - standard(value) * slope);
    };
    const std::int64_t c = c_;
    if (weight && added) {
      for (std::int64_t i = 0; i < c; ++i) to[i] = gradient(x[i], g[i] * weight[i]) + added[i];
    } else if (weight) {
      for (std::int64_t i = 0; i < c; ++i) to[i] = gradient(x[i], g[i] * weight[i]);
    } else if (added) {
      for (std::int64_t i = 0; i < c; ++i) to[i] = gradient(x[i], g[i]) + added[i];
    } else {
      for (std::int64_t i = 0; i < c; ++i) to[i] = gradient(x[i], g[i]);
    }
  }

  /// Adds the sums of the chunks.
  void add(Context& context, std::span<const double> sums, std::int64_t chunks, T* to) const {
    if (!to) return;
    context.parallel_for(c_, std::max<std::int64_t>(1, kElementGrain / chunks),
                         [&](std::int64_t begin, std::int64_t end) {
                           for (std::int64_t i = begin; i < end; ++i) {
                             double total = 0;
                             for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
                               total += sums[static_cast<std::size_t>(chunk * c_ + i)];
                             }
                             to[i] = static_cast<T>(static_cast<C>(total));
                           }
                         });
  }

  double epsilon_;
  std::int64_t c_, count_;
  const T *grad_y_, *sum_, *weight_, *grad_sum_;
  T *grad_x_, *grad_weight_, *grad_bias_;
};

template <bool centred>
struct RowGradientsCpu : ChecksEpsilon {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    return RowGradients<T, centred>(in, attributes, out).run(context);
  }
};

}  // namespace opgate::ops

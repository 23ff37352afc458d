#include "layer_norm.h"

#include "kernel_toolkit/elementwise.h"
#include "kernel_toolkit/rows.h"

namespace opgate::ops::layer_norm {
namespace {

struct Cpu : ChecksEpsilon {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const double epsilon = attributes.number("epsilon");
    const std::int64_t c = in.size("c"), size = in["x"].size();
    const T* const x = in["x"].data<T>();
    const T* const residual = data_or_null<T>(in, "residual");
    const T* const weight = data_or_null<T>(in, "weight");
    const T* const bias = data_or_null<T>(in, "bias");
    T* const y = out["y"].data<T>();
    T* const sum = data_or_null<T>(out, "sum");
    if (size == 0) return {};
    const std::int64_t grain = std::max<std::int64_t>(1, kElementGrain / c);
    context.parallel_for(size / c, grain, [&](std::int64_t begin, std::int64_t end) {
      rows::Sums<T> sums(x, residual, sum, y, c);
      rows::Buffer<T> wide_weight(weight ? c : 0), wide_bias(bias ? c : 0), result(c);
      const auto* const factors = weight ? wide_weight.read(weight, c) : nullptr;
      const auto* const terms = bias ? wide_bias.read(bias, c) : nullptr;
      for (std::int64_t at = begin * c; at < end * c; at += c) {
        const auto* const row = sums.row(at);
        rows::affine(c, rows::standard(row, c, epsilon), row, factors, terms, result.target(y + at));
        result.store(y + at, c);
      }
    });
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::layer_norm

OPGATE_CPU_KERNEL(LayerNorm, opgate::ops::layer_norm::Cpu)

#include "group_norm.h"

#include "core/elementwise.h"
#include "core/rows.h"

namespace opgate::ops::group_norm {
namespace {

/// A group's numbers lie one after the other, so they are a row. A channel's numbers are a part of it.
struct Cpu : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const double epsilon = attributes.number("epsilon");
    const std::int64_t groups = attributes.integer("groups"), size = in["x"].size();
    const T* const x = in["x"].data<T>();
    const T* const residual = data_or_null<T>(in, "residual");
    const T* const weight = data_or_null<T>(in, "weight");
    const T* const bias = data_or_null<T>(in, "bias");
    T* const y = out["y"].data<T>();
    T* const sum = data_or_null<T>(out, "sum");
    if (size == 0) return {};
    const std::int64_t n = in.size("n"), channels = in.size("c") / groups;
    const std::int64_t length = size / (n * groups), part = length / channels;
    const std::int64_t grain = std::max<std::int64_t>(1, kElementGrain / length);
    context.parallel_for(n * groups, grain, [&](std::int64_t begin, std::int64_t end) {
      rows::Sums<T> sums(x, residual, sum, y, length);
      rows::Buffer<T> result(length);
      for (std::int64_t group = begin; group < end; ++group) {
        const std::int64_t at = group * length, first = group % groups * channels;
        const auto* const row = sums.row(at);
        const auto standard = rows::standard(row, length, epsilon);
        auto* const to = result.target(y + at);
        for (std::int64_t channel = 0; channel < channels; ++channel) {
          using C = ComputeType<T>;
          const C factor = weight ? static_cast<C>(weight[first + channel]) : C(1);
          const C term = bias ? static_cast<C>(bias[first + channel]) : C(0);
          for (std::int64_t i = channel * part; i < (channel + 1) * part; ++i) to[i] = standard(row[i]) * factor + term;
        }
        result.store(y + at, length);
      }
    });
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::group_norm

OPGATE_CPU_KERNEL(GroupNorm, opgate::ops::group_norm::Cpu)

#include "rms_norm.h"

#include "kernel_toolkit/elementwise.h"
#include "kernel_toolkit/rows.h"

namespace opgate::ops::rms_norm {
namespace {

struct Cpu : ChecksEpsilon {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    using C = ComputeType<T>;
    const double epsilon = attributes.number("epsilon");
    const std::int64_t c = in.size("c"), size = in["x"].size();
    const T* const x = in["x"].data<T>();
    const T* const residual = data_or_null<T>(in, "residual");
    const T* const weight = data_or_null<T>(in, "weight");
    T* const y = out["y"].data<T>();
    T* const sum = data_or_null<T>(out, "sum");
    if (size == 0) return {};
    const std::int64_t grain = std::max<std::int64_t>(1, kElementGrain / c);
    context.parallel_for(size / c, grain, [&](std::int64_t begin, std::int64_t end) {
      rows::Sums<T> sums(x, residual, sum, y, c);
      rows::Buffer<T> wide_weight(weight ? c : 0), result(c);
      const C* const factors = weight ? wide_weight.read(weight, c) : nullptr;
      const C* const none = nullptr;
      for (std::int64_t at = begin * c; at < end * c; at += c) {
        const C* const row = sums.row(at);
        const C scale = rows::root_scale(row, c, epsilon);
        rows::affine(c, [scale](C value) { return value * scale; }, row, factors, none, result.target(y + at));
        result.store(y + at, c);
      }
    });
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::rms_norm

OPGATE_CPU_KERNEL(RMSNorm, opgate::ops::rms_norm::Cpu)

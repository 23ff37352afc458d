#include "rms_norm.h"

#include "core/elementwise.h"

namespace opgate::ops::rms_norm {
namespace {

constexpr std::int64_t kBlock = 512;

/// The sum of squares of at most kBlock values. It has several partial sums, because they vectorize and round less than
/// one sum.
template <typename T>
float block_squares(const T* values, std::int64_t count) {
  constexpr std::int64_t kLanes = 32;
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<float>(values[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (std::int64_t lane = 0; i < count; ++i, ++lane) {
    const auto value = static_cast<float>(values[i]);
    lanes[lane] += value * value;
  }
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

/// The sum of squares of a row. A partial sum in f32 adds few values, so the error doesn't grow with the row.
template <typename T>
double squares(const T* values, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; i += kBlock) sum += block_squares(values + i, std::min(kBlock, count - i));
  return sum;
}

struct Cpu : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const auto epsilon = static_cast<float>(attributes.number("epsilon"));
    const Tensor& x = in["x"];
    const std::int64_t c = in.size("c");
    const auto* const weight = in["weight"].data<T>();
    const auto* const residual = in.has("residual") ? in["residual"].data<T>() : nullptr;
    T* const y = out["y"].data<T>();
    T* const sum = out.has("sum") ? out["sum"].data<T>() : nullptr;
    if (c == 0) return {};
    const std::int64_t grain = std::max<std::int64_t>(1, kElementGrain / c);
    context.parallel_for(x.size() / c, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t at = row * c;
        const T* values = x.data<T>() + at;
        if (residual) {
          // If nobody wants the sum, it is stored in y and then overwritten.
          T* const total = (sum ? sum : y) + at;
          for (std::int64_t i = 0; i < c; ++i) {
            total[i] = static_cast<T>(static_cast<float>(values[i]) + static_cast<float>(residual[at + i]));
          }
          values = total;
        } else if (sum) {
          std::copy_n(values, c, sum + at);
        }
        const auto scale = static_cast<float>(1 / std::sqrt(squares(values, c) / static_cast<double>(c) + epsilon));
        for (std::int64_t i = 0; i < c; ++i) {
          y[at + i] = static_cast<T>(static_cast<float>(values[i]) * scale * static_cast<float>(weight[i]));
        }
      }
    });
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::rms_norm

OPGATE_CPU_KERNEL(RMSNorm, opgate::ops::rms_norm::Cpu)

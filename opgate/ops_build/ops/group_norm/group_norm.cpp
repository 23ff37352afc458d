#include "group_norm.h"

#include "kernel_toolkit/elementwise.h"
#include "kernel_toolkit/rows.h"

namespace opgate::ops::group_norm {
namespace {

/// The weight or the bias of each number of a picture, where channels have so few numbers that a loop over those of a
/// channel is too short to be vectorized.
template <typename T>
std::vector<ComputeType<T>> repeated(const T* of_channel, std::int64_t channels, std::int64_t part) {
  std::vector<ComputeType<T>> numbers(static_cast<std::size_t>(of_channel ? channels * part : 0));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<ComputeType<T>>(of_channel[i / static_cast<std::size_t>(part)]);
  return numbers;
}

/// A group's numbers lie one after the other, so they are a row. A channel's numbers are a part of it.
struct Cpu : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    using C = ComputeType<T>;
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
    const bool few = part < kFew;
    const std::vector<C> factors = repeated(few ? weight : nullptr, in.size("c"), part);
    const std::vector<C> terms = repeated(few ? bias : nullptr, in.size("c"), part);
    context.parallel_for(n * groups, grain, [&](std::int64_t begin, std::int64_t end) {
      rows::Sums<T> sums(x, residual, sum, y, length);
      rows::Buffer<T> result(length);
      for (std::int64_t group = begin; group < end; ++group) {
        const std::int64_t at = group * length, first = group % groups * channels;
        const C* const row = sums.row(at);
        const auto standard = rows::standard(row, length, epsilon);
        C* const to = result.target(y + at);
        if (few) {
          const auto of_group = [&](const std::vector<C>& all) { return all.empty() ? nullptr : &all[first * part]; };
          rows::affine(length, standard, row, of_group(factors), of_group(terms), to);
        } else {
          by_channel(standard, row, weight ? weight + first : nullptr, bias ? bias + first : nullptr, channels, part,
                     to);
        }
        result.store(y + at, length);
      }
    });
    return {};
  }

 private:
  static constexpr std::int64_t kFew = 16;

  template <typename T, typename C>
  static void by_channel(const rows::Standard<C> standard, const C* row, const T* weight, const T* bias,
                         std::int64_t channels, std::int64_t part, C* to) {
    for (std::int64_t channel = 0; channel < channels; ++channel) {
      const C factor = weight ? static_cast<C>(weight[channel]) : C(1),
              term = bias ? static_cast<C>(bias[channel]) : C(0);
      for (std::int64_t i = channel * part; i < (channel + 1) * part; ++i) to[i] = standard(row[i]) * factor + term;
    }
  }
};

}  // namespace
}  // namespace opgate::ops::group_norm

OPGATE_CPU_KERNEL(GroupNorm, opgate::ops::group_norm::Cpu)

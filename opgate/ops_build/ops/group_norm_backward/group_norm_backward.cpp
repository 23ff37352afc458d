#include "group_norm_backward.h"

#include "kernel_toolkit/elementwise.h"
#include "kernel_toolkit/rows.h"

namespace opgate::ops::group_norm_backward {
namespace {

/// With z = standard(sum) and g = grad_y weight, the gradient of a group is scale (g - mean(g) - z mean(g z)) +
/// grad_sum. The gradients of weight and bias are the sums of grad_y z and of grad_y over a channel, in all samples.
template <typename T>
class Groups {
 public:
  using C = ComputeType<T>;

  Groups(const Inputs& in, const Attributes& attributes, Outputs& out)
      : epsilon_(attributes.number("epsilon")),
        groups_(attributes.integer("groups")),
        n_(in.size("n")),
        c_(in.size("c")),
        channels_(c_ / groups_),
        length_(in["sum"].size() / std::max<std::int64_t>(1, n_ * groups_)),
        part_(length_ / std::max<std::int64_t>(1, channels_)),
        grad_y_(in["grad_y"].data<T>()),
        sum_(in["sum"].data<T>()),
        weight_(data_or_null<T>(in, "weight")),
        grad_sum_(data_or_null<T>(in, "grad_sum")),
        grad_x_(out["grad_x_and_residual"].data<T>()),
        grad_weight_(data_or_null<T>(out, "grad_weight")),
        grad_bias_(data_or_null<T>(out, "grad_bias")) {}

  Status run(Context& context) {
    if (length_ == 0 || n_ == 0) {  // there may be any number of groups without numbers
      for (T* const gradient : {grad_weight_, grad_bias_}) {
        if (gradient) std::fill_n(gradient, c_, static_cast<T>(0.0f));
      }
      return {};
    }
    moments_ = context.scratch<double>(n_ * c_);
    sums_ = context.scratch<double>(n_ * c_);
    const std::int64_t grain = std::max<std::int64_t>(1, kElementGrain / (length_ + 1));
    context.parallel_for(n_ * groups_, grain, [&](std::int64_t begin, std::int64_t end) {
      rows::Buffer<T> sum(length_), grad_y(length_), grad_sum(grad_sum_ ? length_ : 0), to(length_);
      for (std::int64_t group = begin; group < end; ++group) run_group(group, sum, grad_y, grad_sum, to);
    });
    add_samples(moments_, grad_weight_);
    add_samples(sums_, grad_bias_);
    return {};
  }

 private:
  using Buffer = rows::Buffer<T>;

  void run_group(std::int64_t group, Buffer& wide_sum, Buffer& wide_grad, Buffer& wide_grad_sum, Buffer& to) const {
    const std::int64_t at = group * length_, first = group % groups_ * channels_;
    const C* const x = wide_sum.read(sum_ + at, length_);
    const C* const g = wide_grad.read(grad_y_ + at, length_);
    const C* const added = grad_sum_ ? wide_grad_sum.read(grad_sum_ + at, length_) : nullptr;
    const rows::Standard<C> standard = rows::standard(x, length_, epsilon_);
    double plain = 0, moment = 0;
    for (std::int64_t channel = 0; channel < channels_; ++channel) {
      const auto terms = [standard](auto value, auto gradient) {
        return std::array<decltype(value), 2>{gradient, gradient * standard(value)};
      };
      const auto [a, b] = rows::sum<2>(part_, terms, x + channel * part_, g + channel * part_);
      const auto place = static_cast<std::size_t>(group * channels_ + channel);
      sums_[place] = a;
      moments_[place] = b;
      plain += static_cast<double>(factor(first + channel)) * a;
      moment += static_cast<double>(factor(first + channel)) * b;
    }
    const auto length = static_cast<double>(length_);
    const C mean = static_cast<C>(plain / length), slope = static_cast<C>(moment / length);
    C* const target = to.target(grad_x_ + at);
    for (std::int64_t channel = 0; channel < channels_; ++channel) {
      write(standard, mean, slope, factor(first + channel), x, g, added, channel * part_, target);
    }
    to.store(grad_x_ + at, length_);
  }

  C factor(std::int64_t channel) const { return weight_ ? static_cast<C>(weight_[channel]) : C(1); }

  /// The gradient of a channel's numbers, from `begin` on.
  void write(const rows::Standard<C> standard, C mean, C slope, C factor, const C* x, const C* g, const C* added,
             std::int64_t begin, C* to) const {
    const std::int64_t end = begin + part_;
    const auto gradient = [=](std::int64_t i) {
      return standard.scale * ((g[i] * factor - mean) - standard(x[i]) * slope);
    };
    if (added) {
      for (std::int64_t i = begin; i < end; ++i) to[i] = gradient(i) + added[i];
    } else {
      for (std::int64_t i = begin; i < end; ++i) to[i] = gradient(i);
    }
  }

  /// Adds the sums of the samples, in their order.
  void add_samples(std::span<const double> sums, T* to) const {
    for (std::int64_t channel = 0; to && channel < c_; ++channel) {
      double total = 0;
      for (std::int64_t sample = 0; sample < n_; ++sample)
        total += sums[static_cast<std::size_t>(sample * c_ + channel)];
      to[channel] = static_cast<T>(static_cast<C>(total));
    }
  }

  double epsilon_;
  std::int64_t groups_, n_, c_, channels_, length_, part_;
  const T *grad_y_, *sum_, *weight_, *grad_sum_;
  T *grad_x_, *grad_weight_, *grad_bias_;
  std::span<double> moments_, sums_;  ///< of grad_y z and of grad_y, for each channel of each sample
};

struct Cpu : group_norm::Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    return Groups<T>(in, attributes, out).run(context);
  }
};

}  // namespace
}  // namespace opgate::ops::group_norm_backward

OPGATE_CPU_KERNEL(GroupNormBackward, opgate::ops::group_norm_backward::Cpu)

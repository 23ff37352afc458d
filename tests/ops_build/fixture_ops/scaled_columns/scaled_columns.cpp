#include "scaled_columns.h"

namespace opgate::ops::scaled_columns {
namespace {

std::atomic<std::int64_t> preparations = 0;

std::vector<float> scaled(const Tensor& weight, float scale) {
  std::vector<float> values(weight.span<float>().begin(), weight.span<float>().end());
  for (float& value : values) value *= scale;
  return values;
}

class Cpu {
 public:
  Status prepare(const Node& node) {
    if (const Tensor* weight = node.constant("weight")) {
      weights_ = scaled(*weight, static_cast<float>(node.attributes().number("scale")));
    }
    return prepared_.read(node, preparations);
  }

  Status operator()(Context&, const Inputs& in, const Attributes&, Outputs& out) const {
    const std::int64_t c = in.size("c");
    if (prepared_.columns.value_or(c) != c) return Status::internal("the kernel was prepared for another size");
    const std::vector<float> weights = weights_.empty() ? scaled(in["weight"], prepared_.scale) : weights_;
    for (std::int64_t i = 0; i < in["x"].size(); ++i) {
      out["y"].data<float>()[i] = in["x"].data<float>()[i] * weights[static_cast<std::size_t>(i % c)];
    }
    *out["prepared"].data<std::int64_t>() = prepared_.number;
    *out["constant"].data<std::int32_t>() = weights_.empty() ? 0 : 1;
    return {};
  }

 private:
  Prepared prepared_;
  std::vector<float> weights_;
};

}  // namespace
}  // namespace opgate::ops::scaled_columns

OPGATE_CPU_KERNEL(ScaledColumns, opgate::ops::scaled_columns::Cpu)

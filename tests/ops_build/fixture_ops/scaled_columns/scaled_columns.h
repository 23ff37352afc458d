#pragma once

#include "kernel_toolkit/op.h"

// An op whose kernels have prepare(). Each call of prepare() in a process gets the next number. The output `prepared`
// is the number of the kernel that ran, and `constant` says whether its prepare() read the weight.
OPGATE_OP(
    ScaledColumns,
    "ScaledColumns(x: f32[n,c], weight: f32[c]; scale: float=1) -> (y: f32[n,c], prepared: i64[], constant: i32[])",
    "x times weight times scale, each column with its own weight.")

namespace opgate::ops::scaled_columns {

/// The state that prepare() computes in both kernels. `preparations` counts the calls on one device.
struct Prepared {
  std::int64_t number = 0;
  float scale = 1;
  std::optional<std::int64_t> columns;

  Status read(const Node& node, std::atomic<std::int64_t>& preparations) {
    scale = static_cast<float>(node.attributes().number("scale"));
    if (!(scale == scale)) return Status::invalid("attribute 'scale': expected a number, got nan");
    if (scale < 0) throw std::runtime_error("thrown by prepare()");
    columns = node.size("c");
    number = ++preparations;
    return {};
  }
};

}  // namespace opgate::ops::scaled_columns

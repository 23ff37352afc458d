#pragma once

#include "core/op.h"

// An op whose kernels prepare: `prepared` counts how often that happened in this process, up to the kernel that ran, and
// `constant` says whether prepare() read the weight.
OPGATE_OP(ScaledColumns,
          "ScaledColumns(x: f32[n,c], weight: f32[c]; scale: float=1) -> (y: f32[n,c], prepared: i64[], constant: i32[])",
          "x times weight times scale, each column with its own weight.")

namespace opgate::ops::scaled_columns {

/// What both kernels prepare. `preparations` is the counter of a device.
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

// Tests ragged rows (flat bytes and their ends) with a status per row, and an error for the whole call.
#include <charconv>

#include "kernel_toolkit/op.h"

OPGATE_OP(ParseNumber, "ParseNumber(data: u8[total], ends: i32[n]; base: int=10) -> (value: i64[n], status: i32[n])",
          "Each row's text as an integer. The status is 1 if it is no integer.")

namespace opgate::ops {
struct ParseNumberCpu {
  Status operator()(Context&, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Tensor &data = in["data"], &ends = in["ends"];
    const char* text = reinterpret_cast<const char*>(data.data<std::uint8_t>());
    std::int64_t start = 0;
    for (std::int64_t i = 0; i < ends.size(); ++i) {
      const std::int64_t end = ends.data<std::int32_t>()[i];
      if (end < start || end > data.size()) {
        return Status::invalid("input 'ends': expected ascending ends up to " + std::to_string(data.size()) + ", got " +
                               std::to_string(end) + " at " + std::to_string(i));
      }
      std::int64_t value = 0;
      const auto [stop, error] =
          std::from_chars(text + start, text + end, value, static_cast<int>(attributes.integer("base")));
      const bool good = error == std::errc() && stop == text + end;
      out["value"].data<std::int64_t>()[i] = good ? value : 0;
      out["status"].data<std::int32_t>()[i] = good ? 0 : 1;
      start = end;
    }
    return {};
  }
};
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(ParseNumber, opgate::ops::ParseNumberCpu)

#include "decode_points.h"

#include "cloud.h"
#include "kernel_toolkit/row_ends.h"

namespace opgate::ops::decode_points {
namespace {

/// Reads a file. A bad one becomes a single point at the origin, so that every row has a point.
CloudStatus read(Bytes file, std::uint64_t max_points, Cloud& cloud) {
  CloudStatus status = CloudStatus::unknown;
  if (has_at(file, 0, "\x93NUMPY")) status = read_npy(file, max_points, cloud);
  if (has_at(file, 0, "ply\n") || has_at(file, 0, "ply\r\n")) status = read_ply(file, max_points, cloud);
  if (status != CloudStatus::good) cloud.assign(3, 0.0f);
  return status;
}

struct Cpu {
  static Status check(const Attributes& attributes, const KnownSizes&) {
    const std::int64_t most = attributes.integer("max_points");
    return most >= 1 && most <= 1 << 28 ? Status() : attributes.refuse("max_points", "1..2^28");
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Bytes data = in["data"].span<std::uint8_t>();
    const std::span<const std::int32_t> ends = in["ends"].span<std::int32_t>();
    OPGATE_RETURN_IF_ERROR(check_ends(ends, static_cast<std::int64_t>(data.size())));
    const auto max_points = static_cast<std::uint64_t>(attributes.integer("max_points"));
    auto* const offsets = out["offset"].data<std::int32_t>();
    auto* const statuses = out["status"].data<std::int32_t>();
    std::vector<Cloud> clouds(ends.size());
    context.parallel_for(static_cast<std::int64_t>(ends.size()), 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        const CloudStatus status = read(row_of(data, ends, i), max_points, clouds[static_cast<std::size_t>(i)]);
        statuses[i] = static_cast<std::int32_t>(status);
      }
    });
    std::size_t points = 0;
    for (std::size_t i = 0; i < clouds.size(); ++i) {
      points += clouds[i].size() / 3;
      offsets[i] = static_cast<std::int32_t>(points);
    }
    OPGATE_RETURN_IF_ERROR(out.bind("p", static_cast<std::int64_t>(points)));
    auto* xyz = out["xyz"].data<float>();
    for (const Cloud& cloud : clouds) xyz = std::copy(cloud.begin(), cloud.end(), xyz);
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::decode_points

OPGATE_CPU_KERNEL(DecodePoints, opgate::ops::decode_points::Cpu)

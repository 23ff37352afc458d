#include "file_ends.h"

#include <algorithm>
#include <string_view>

#include "kernel_toolkit/row_ends.h"

namespace opgate::ops::file_ends {
namespace {

using Bytes = std::span<const std::uint8_t>;

/// What a status says of a row.
enum class RowStatus : std::int32_t { good, too_short };

constexpr std::int64_t kMost = 1 << 26;

/// ASCII's white space, as Python's bytes.strip has it.
bool is_space(std::uint8_t byte) { return byte == ' ' || (byte >= '\t' && byte <= '\r'); }

/// How one row is made.
struct Settings {
  std::int64_t head, tail, block, least;
  bool strip;
  std::int32_t pad;

  explicit Settings(const Attributes& attributes)
      : head(attributes.integer("head")),
        tail(attributes.integer("tail")),
        block(attributes.integer("block")),
        least(attributes.integer("least")),
        strip(attributes.boolean("strip")),
        pad(static_cast<std::int32_t>(attributes.integer("pad"))) {}

  /// Returns the bytes that the head is taken from.
  Bytes first(Bytes file) const {
    Bytes found = file.first(std::min(file.size(), static_cast<std::size_t>(block)));
    if (strip) found = found.subspan(std::find_if_not(found.begin(), found.end(), is_space) - found.begin());
    return found.first(std::min(found.size(), static_cast<std::size_t>(head)));
  }

  /// Returns the bytes that the tail is taken from.
  Bytes last(Bytes file) const {
    Bytes found = file.last(std::min(file.size(), static_cast<std::size_t>(block)));
    if (strip) found = found.first(found.rend() - std::find_if_not(found.rbegin(), found.rend(), is_space));
    return found.last(std::min(found.size(), static_cast<std::size_t>(tail)));
  }

  RowStatus write(Bytes file, std::int32_t* values) const {
    const Bytes from_head = first(file);
    std::fill_n(std::copy(from_head.begin(), from_head.end(), values),
                head - static_cast<std::int64_t>(from_head.size()), pad);
    const Bytes from_tail = last(file);
    std::int32_t* const begin = std::fill_n(values + head, tail - static_cast<std::int64_t>(from_tail.size()), pad);
    std::copy(from_tail.begin(), from_tail.end(), begin);
    return static_cast<std::int64_t>(from_head.size()) < std::min(least, head) ? RowStatus::too_short : RowStatus::good;
  }
};

struct Cpu {
  static Status check(const Attributes& attributes, const KnownSizes&) {
    const std::int64_t head = attributes.integer("head"), tail = attributes.integer("tail");
    if (head < 0 || head > kMost) return attributes.refuse("head", "0..2^26");
    if (tail < 0 || tail > kMost) return attributes.refuse("tail", "0..2^26");
    if (head + tail < 1) return attributes.refuse("head", "1 or more without a tail");
    if (attributes.integer("block") < std::max(head, tail)) {
      return attributes.refuse("block",
                               "at least the larger of head and tail, " + std::to_string(std::max(head, tail)));
    }
    const std::int64_t pad = attributes.integer("pad");
    if (pad < std::numeric_limits<std::int32_t>::min() || pad > std::numeric_limits<std::int32_t>::max())
      return attributes.refuse("pad", "a number of 32 bits");
    if (attributes.integer("least") < 0 || attributes.integer("least") > head)
      return attributes.refuse("least", "0 to head, " + std::to_string(head));
    return {};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Bytes data = in["data"].span<std::uint8_t>();
    const std::span<const std::int32_t> ends = in["ends"].span<std::int32_t>();
    OPGATE_RETURN_IF_ERROR(check_ends(ends, static_cast<std::int64_t>(data.size())));
    const Settings settings(attributes);
    auto* const values = out["values"].data<std::int32_t>();
    auto* const statuses = out["status"].data<std::int32_t>();
    const std::int64_t width = settings.head + settings.tail;
    context.parallel_for(static_cast<std::int64_t>(ends.size()), std::max<std::int64_t>(1, 16384 / width),
                         [&](std::int64_t first, std::int64_t last) {
                           for (std::int64_t i = first; i < last; ++i) {
                             statuses[i] =
                                 static_cast<std::int32_t>(settings.write(row_of(data, ends, i), values + i * width));
                           }
                         });
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::file_ends

OPGATE_CPU_KERNEL(FileEnds, opgate::ops::file_ends::Cpu)

#include "images/codecs/orientation.h"

#include <optional>

namespace opgate::codecs {
namespace {

constexpr unsigned kOrientationTag = 0x0112;
constexpr unsigned kShort = 3;
constexpr unsigned kLong = 4;

/// Reads numbers from a TIFF structure of either byte order, and never beyond its end.
class Tiff {
 public:
  Tiff(std::span<const std::uint8_t> bytes, bool little) : bytes_(bytes), little_(little) {}

  std::optional<std::uint32_t> number(std::size_t at, std::size_t size) const {
    if (at > bytes_.size() || bytes_.size() - at < size) return std::nullopt;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < size; ++i) value = value << 8 | bytes_[at + (little_ ? size - 1 - i : i)];
    return value;
  }

 private:
  std::span<const std::uint8_t> bytes_;
  bool little_;
};

}  // namespace

Orientation Orientation::of_exif(int value) {
  switch (value) {
    case 2: return {.mirrored_x = true};
    case 3: return {.mirrored_x = true, .mirrored_y = true};
    case 4: return {.mirrored_y = true};
    case 5: return {.transposed = true};
    case 6: return {.transposed = true, .mirrored_x = true};
    case 7: return {.transposed = true, .mirrored_x = true, .mirrored_y = true};
    case 8: return {.transposed = true, .mirrored_y = true};
    default: return {};
  }
}

Strides Strides::of(Orientation orientation, std::ptrdiff_t width, std::ptrdiff_t height, std::ptrdiff_t pitch) {
  const std::ptrdiff_t along_x = orientation.mirrored_x ? -1 : 1;
  const std::ptrdiff_t along_y = orientation.mirrored_y ? -pitch : pitch;
  Strides strides;
  strides.origin = (orientation.mirrored_x ? width - 1 : 0) + (orientation.mirrored_y ? (height - 1) * pitch : 0);
  strides.column = orientation.transposed ? along_y : along_x;
  strides.row = orientation.transposed ? along_x : along_y;
  return strides;
}

int exif_orientation(std::span<const std::uint8_t> tiff) {
  if (tiff.size() < 8 || tiff[0] != tiff[1] || (tiff[0] != 'I' && tiff[0] != 'M')) return 1;
  const Tiff reader(tiff, tiff[0] == 'I');
  if (reader.number(2, 2) != 42u) return 1;
  const std::size_t directory = *reader.number(4, 4);
  const std::size_t entries = reader.number(directory, 2).value_or(0);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + 12 * i;
    const auto tag = reader.number(entry, 2);
    if (!tag) return 1;
    if (*tag != kOrientationTag) continue;
    const auto type = reader.number(entry + 2, 2);
    const auto value = reader.number(entry + 8, type == kLong ? 4 : 2);
    if ((type != kShort && type != kLong) || !value || *value < 1 || *value > 8) return 1;
    return static_cast<int>(*value);
  }
  return 1;
}

}  // namespace opgate::codecs

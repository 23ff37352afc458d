#include "images/codecs/decoder.h"

#include <algorithm>
#include <array>

#include "images/codecs/formats.h"

namespace opgate::codecs {
namespace {

constexpr std::array<std::uint8_t, 3> kJpegMagic = {0xff, 0xd8, 0xff};
constexpr std::array<std::uint8_t, 8> kPngMagic = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

/// A RIFF with a size of four bytes and the type WEBP.
constexpr std::array<std::uint8_t, 4> kRiffMagic = {'R', 'I', 'F', 'F'}, kWebpMagic = {'W', 'E', 'B', 'P'};
constexpr std::size_t kWebpAt = 8;

constexpr std::array<std::uint8_t, 6> kGif87Magic = {'G', 'I', 'F', '8', '7', 'a'};
constexpr std::array<std::uint8_t, 6> kGif89Magic = {'G', 'I', 'F', '8', '9', 'a'};
constexpr std::array<std::uint8_t, 2> kBmpMagic = {'B', 'M'};

bool starts_with(std::span<const std::uint8_t> bytes, std::span<const std::uint8_t> magic) {
  return bytes.size() >= magic.size() && std::ranges::equal(bytes.first(magic.size()), magic);
}

}  // namespace

const char* message(DecodeStatus status) {
  switch (status) {
    case DecodeStatus::good: return "good";
    case DecodeStatus::unknown_format: return "not a JPEG, PNG, WebP, BMP or GIF";
    case DecodeStatus::corrupt: return "corrupt or truncated";
    case DecodeStatus::too_many_pixels: return "more than max_pixels pixels";
    case DecodeStatus::unsupported: return "an unsupported kind of picture";
  }
  return "unknown";
}

DecodeStatus check_size(std::int64_t width, std::int64_t height, std::int64_t max_pixels) {
  if (width * height > max_pixels) return DecodeStatus::too_many_pixels;
  return std::max(width, height) > kMaxSide ? DecodeStatus::unsupported : DecodeStatus::good;
}

std::unique_ptr<Decoder> open(std::span<const std::uint8_t> bytes, std::int64_t max_pixels, DecodeStatus& status) {
  if (starts_with(bytes, kJpegMagic)) return open_jpeg(bytes, max_pixels, status);
  if (starts_with(bytes, kPngMagic)) return open_png(bytes, max_pixels, status);
  if (starts_with(bytes, kRiffMagic) && bytes.size() > kWebpAt && starts_with(bytes.subspan(kWebpAt), kWebpMagic))
    return open_webp(bytes, max_pixels, status);
  if (starts_with(bytes, kGif87Magic) || starts_with(bytes, kGif89Magic)) return open_gif(bytes, max_pixels, status);
  if (starts_with(bytes, kBmpMagic)) return open_bmp(bytes, max_pixels, status);
  status = DecodeStatus::unknown_format;
  return nullptr;
}

}  // namespace opgate::codecs

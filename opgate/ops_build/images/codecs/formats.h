// The decoders behind open(), one for each format.
#pragma once

#include "images/codecs/decoder.h"

namespace opgate::codecs {

using ByteSpan = std::span<const std::uint8_t>;

std::unique_ptr<Decoder> open_jpeg(ByteSpan bytes, std::int64_t max_pixels, DecodeStatus& status);
std::unique_ptr<Decoder> open_png(ByteSpan bytes, std::int64_t max_pixels, DecodeStatus& status);
std::unique_ptr<Decoder> open_webp(ByteSpan bytes, std::int64_t max_pixels, DecodeStatus& status);
std::unique_ptr<Decoder> open_bmp(ByteSpan bytes, std::int64_t max_pixels, DecodeStatus& status);
std::unique_ptr<Decoder> open_gif(ByteSpan bytes, std::int64_t max_pixels, DecodeStatus& status);

/// The number in up to four bytes, the lowest of them first.
inline std::uint32_t little_endian(ByteSpan bytes) {
  std::uint32_t number = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) number = number << 8 | bytes[i];
  return number;
}

/// A value of a pixel composited over the background.
inline std::uint8_t over_background(unsigned value, unsigned alpha, unsigned background) {
  return static_cast<std::uint8_t>((value * alpha + background * (255 - alpha) + 127) / 255);
}

/// Whether a picture of this size may be decoded.
DecodeStatus check_size(std::int64_t width, std::int64_t height, std::int64_t max_pixels);

}  // namespace opgate::codecs

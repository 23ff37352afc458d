// The decoders behind open(), one for each format.
#pragma once

#include "images/codecs/decoder.h"

namespace opgate::codecs {

std::unique_ptr<Decoder> open_jpeg(std::span<const std::uint8_t> bytes, std::int64_t max_pixels, DecodeStatus& status);
std::unique_ptr<Decoder> open_png(std::span<const std::uint8_t> bytes, std::int64_t max_pixels, DecodeStatus& status);
std::unique_ptr<Decoder> open_webp(std::span<const std::uint8_t> bytes, std::int64_t max_pixels, DecodeStatus& status);

/// A value of a pixel composited over the background.
inline std::uint8_t over_background(unsigned value, unsigned alpha, unsigned background) {
  return static_cast<std::uint8_t>((value * alpha + background * (255 - alpha) + 127) / 255);
}

/// Whether a picture of this size may be decoded.
DecodeStatus check_size(std::int64_t width, std::int64_t height, std::int64_t max_pixels);

}  // namespace opgate::codecs

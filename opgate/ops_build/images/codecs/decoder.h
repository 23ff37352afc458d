// Decodes pictures row by row: JPEG with libjpeg-turbo, PNG with libpng, WebP with libwebp, BMP and GIF with code of
// our own.
//
// A decoder returns a DecodeStatus for all bytes, good or bad. max_pixels and the size of the input bound its memory:
// some rows for baseline JPEG and PNG, 6 bytes per pixel for JPEG with several scans (8 with four channels), 4 for
// interlaced PNG, one for GIF and for a compressed BMP, some more for WebP (README.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "images/codecs/orientation.h"

namespace opgate::codecs {

enum class DecodeStatus : std::int32_t { good, unknown_format, corrupt, too_many_pixels, unsupported };

/// "corrupt or truncated"
const char* message(DecodeStatus status);

/// The largest width and height of a picture.
inline constexpr std::int64_t kMaxSide = 65535;

struct PictureHeader {
  int width = 0;  ///< as stored, before it is turned upright
  int height = 0;
  Orientation orientation;

  int upright_width() const { return orientation.transposed ? height : width; }
  int upright_height() const { return orientation.transposed ? width : height; }
};

/// One picture. Rows come as stored, from top to bottom. The caller turns the picture upright.
class Decoder {
 public:
  virtual ~Decoder() = default;

  const PictureHeader& header() const { return header_; }

  /// Call it once, before the first row. `reduction` is 1, 2, 4 or 8: there are ceil(height / reduction) rows of
  /// ceil(width / reduction) pixels. Transparent pixels are composited over `background` in every channel.
  virtual DecodeStatus start(int reduction, std::uint8_t background) = 0;

  /// Writes the next row, three bytes (R, G, B) per pixel.
  virtual DecodeStatus read_row(std::uint8_t* rgb) = 0;

  /// Call it after the last row. It says whether the file ends correctly.
  virtual DecodeStatus finish() = 0;

 protected:
  PictureHeader header_;
};

/// Reads the header of a JPEG, PNG, WebP, BMP or GIF. Returns null unless `status` is good. `bytes` must outlive the
/// decoder. The memory that it allocates doesn't depend on the size of the picture.
std::unique_ptr<Decoder> open(std::span<const std::uint8_t> bytes, std::int64_t max_pixels, DecodeStatus& status);

}  // namespace opgate::codecs

// Pictures out of encoded bytes, row by row: JPEG by libjpeg-turbo, PNG by libpng. No engine in sight.
//
// Whatever the bytes are, a decoder returns a DecodeStatus. The memory it takes is bounded by max_pixels and the size
// of the input: some rows for baseline JPEG and plain PNG, 6 bytes a pixel for JPEG in several scans (8 with four
// channels), 4 for interlaced PNG.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "images/codecs/orientation.h"

namespace opgate::codecs {

enum class DecodeStatus : std::int32_t { good, unknown_format, corrupt, too_many_pixels, unsupported };

/// "corrupt or truncated"
const char* message(DecodeStatus status);

/// A picture has at most this many pixels on a side.
inline constexpr std::int64_t kMaxSide = 65535;

struct PictureHeader {
  int width = 0;  ///< as stored, before any turning
  int height = 0;
  Orientation orientation;

  int upright_width() const { return orientation.transposed ? height : width; }
  int upright_height() const { return orientation.transposed ? width : height; }
};

/// One picture. Rows come as stored, top to bottom; turning them upright is the caller's.
class Decoder {
 public:
  virtual ~Decoder() = default;

  const PictureHeader& header() const { return header_; }

  /// To be called once, before the first row. `reduction` is 1, 2, 4 or 8: rows are ceil(width / reduction) pixels and
  /// there are ceil(height / reduction) of them. Transparent pixels are composited over `background` in every channel.
  virtual DecodeStatus start(int reduction, std::uint8_t background) = 0;

  /// The next row, three bytes a pixel (R, G, B).
  virtual DecodeStatus read_row(std::uint8_t* rgb) = 0;

  /// To be called after the last row: says whether the file ends as it should.
  virtual DecodeStatus finish() = 0;

 protected:
  PictureHeader header_;
};

/// Reads the header of a JPEG or PNG; `bytes` must outlive the decoder. Null unless `status` is good. Nothing in
/// proportion to the picture's size is allocated here.
std::unique_ptr<Decoder> open(std::span<const std::uint8_t> bytes, std::int64_t max_pixels, DecodeStatus& status);

}  // namespace opgate::codecs

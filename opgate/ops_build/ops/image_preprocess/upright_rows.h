// The rows of a decoded picture at full size, upright, from top to bottom.
#pragma once

#include <vector>

#include "images/codecs/decoder.h"

namespace opgate::ops::image_preprocess {

/// Rows of u8 [width, channels]. If the file stores the rows in the order in which they stand upright, one row is in
/// memory at a time, otherwise all are.
class UprightRows {
 public:
  /// There are so many readable bytes behind the last pixel of a row.
  static constexpr std::size_t kSlack = 16;

  /// `channels` is 3 (RGB) or 1 (grey).
  UprightRows(codecs::Decoder& decoder, int channels);

  /// Call it once, before the first row. Transparent pixels are composited over `background`.
  codecs::DecodeStatus start(std::uint8_t background);

  /// Row y, which must not lie above that of an earlier call. It is valid until the next call. nullptr if the picture
  /// is broken: see status().
  const std::uint8_t* row(int y);

  codecs::DecodeStatus status() const { return status_; }

  /// Reads the rest of the picture. Says whether all of it is good.
  codecs::DecodeStatus finish();

  int width() const { return decoder_.header().upright_width(); }
  int height() const { return decoder_.header().upright_height(); }
  int channels() const { return static_cast<int>(channels_); }

 private:
  bool read(std::uint8_t* row);
  bool read_all();

  codecs::Decoder& decoder_;
  std::ptrdiff_t channels_;
  codecs::DecodeStatus status_ = codecs::DecodeStatus::good;
  bool stored_upright_;               ///< the rows of the file are those of the upright picture, perhaps mirrored
  int next_ = 0;                      ///< the next row of the file
  std::vector<std::uint8_t> pixels_;  ///< one row, or all
};

}  // namespace opgate::ops::image_preprocess

// Reduces a picture by means of blocks, row by row, for decoders that can't decode at a smaller size.
#pragma once

#include <algorithm>
#include <vector>

#include "images/codecs/decoder.h"

namespace opgate::codecs {

class BlockMeans {
 public:
  /// Of a picture of this size, in blocks of `reduction` x `reduction` pixels.
  void start(int width, int height, int reduction) {
    width_ = width;
    rows_left_ = height;
    reduction_ = reduction;
    row_.resize(std::size_t{3} * static_cast<std::size_t>(width));
    sums_.resize(row_.size());
  }

  /// Writes the next row of rounded means. `read_row` writes the next row in full width, three bytes per pixel.
  template <typename ReadRow>
  DecodeStatus read(const ReadRow& read_row, std::uint8_t* rgb) {
    const int rows = std::min(reduction_, rows_left_);
    std::ranges::fill(sums_, std::uint16_t{0});
    for (int i = 0; i < rows; ++i) {
      if (const DecodeStatus status = read_row(row_.data()); status != DecodeStatus::good) return status;
      for (std::size_t k = 0; k < sums_.size(); ++k) sums_[k] = static_cast<std::uint16_t>(sums_[k] + row_[k]);
    }
    rows_left_ -= rows;
    write_means(rows, rgb);
    return DecodeStatus::good;
  }

 private:
  /// Writes the mean of each block. sums_ has the sums of its columns. The last block may be narrower.
  void write_means(int rows, std::uint8_t* rgb) const {
    for (int left = 0; left < width_; left += reduction_) {
      const int columns = std::min(reduction_, width_ - left);
      const auto count = static_cast<unsigned>(rows * columns);
      const std::uint16_t* sums = sums_.data() + std::size_t{3} * static_cast<std::size_t>(left);
      for (int c = 0; c < 3; ++c) {
        unsigned sum = 0;
        for (int i = 0; i < columns; ++i) sum += sums[3 * i + c];
        *rgb++ = static_cast<std::uint8_t>((sum + count / 2) / count);
      }
    }
  }

  int width_ = 0, rows_left_ = 0, reduction_ = 1;
  std::vector<std::uint8_t> row_;    ///< one row in full width, before it is added to sums_
  std::vector<std::uint16_t> sums_;  ///< sums over `reduction` rows, at most 8 * 255
};

}  // namespace opgate::codecs

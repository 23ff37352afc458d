#include "upright_rows.h"

#include <algorithm>
#include <cstring>

#include "grey.h"

namespace opgate::ops::image_preprocess {

using codecs::DecodeStatus;

namespace {

void mirror_pixels(std::uint8_t* row, std::ptrdiff_t width, std::ptrdiff_t channels) {
  for (std::ptrdiff_t left = 0, right = width - 1; left < right; ++left, --right)
    std::swap_ranges(row + channels * left, row + channels * (left + 1), row + channels * right);
}

}  // namespace

UprightRows::UprightRows(codecs::Decoder& decoder, int channels)
    : decoder_(decoder),
      channels_(channels),
      stored_upright_(!decoder.header().orientation.transposed && !decoder.header().orientation.mirrored_y) {}

DecodeStatus UprightRows::start(std::uint8_t background) {
  status_ = decoder_.start(1, background);
  if (status_ != DecodeStatus::good) return status_;
  const auto row = std::size_t{3} * static_cast<std::size_t>(decoder_.header().width);  // as decoded, before it is grey
  const std::size_t all = static_cast<std::size_t>(channels_) * static_cast<std::size_t>(decoder_.header().width) *
                          static_cast<std::size_t>(decoder_.header().height);
  pixels_.resize((stored_upright_ ? row : all) + kSlack);
  if (!stored_upright_) read_all();
  return status_;
}

/// Reads the next row of the file.
bool UprightRows::read(std::uint8_t* row) {
  status_ = decoder_.read_row(row);
  if (status_ != DecodeStatus::good) return false;
  ++next_;
  if (channels_ == 3) return true;
  for (std::ptrdiff_t x = 0; x < decoder_.header().width; ++x) row[x] = grey_of(row + 3 * x);
  return true;
}

bool UprightRows::read_all() {
  const codecs::PictureHeader& header = decoder_.header();
  const auto strides = codecs::Strides::of(header.orientation, width(), height(), width());
  // Where the picture is transposed, several rows of the file are written at once, because they become columns.
  const std::ptrdiff_t together = header.orientation.transposed ? 16 : 1;
  const auto pitch = std::ptrdiff_t{3} * header.width;
  std::vector<std::uint8_t> rows(static_cast<std::size_t>(together * pitch));
  while (next_ < header.height) {
    const std::ptrdiff_t first = next_, count = std::min<std::ptrdiff_t>(together, header.height - first);
    for (std::ptrdiff_t i = 0; i < count; ++i) {
      if (!read(rows.data() + i * pitch)) return false;
    }
    for (std::ptrdiff_t x = 0; x < header.width; ++x) {
      std::uint8_t* to = pixels_.data() + channels_ * (strides.origin + x * strides.column + first * strides.row);
      const std::uint8_t* from = rows.data() + channels_ * x;
      for (std::ptrdiff_t i = 0; i < count; ++i, to += channels_ * strides.row, from += pitch) {
        for (std::ptrdiff_t c = 0; c < channels_; ++c) to[c] = from[c];
      }
    }
  }
  return true;
}

const std::uint8_t* UprightRows::row(int y) {
  if (!stored_upright_) return pixels_.data() + channels_ * width() * std::ptrdiff_t{y};
  while (next_ <= y) {
    if (!read(pixels_.data())) return nullptr;
    if (next_ > y && decoder_.header().orientation.mirrored_x) mirror_pixels(pixels_.data(), width(), channels_);
  }
  return pixels_.data();
}

DecodeStatus UprightRows::finish() {
  while (status_ == DecodeStatus::good && next_ < decoder_.header().height) read(pixels_.data());
  return status_ == DecodeStatus::good ? decoder_.finish() : status_;
}

}  // namespace opgate::ops::image_preprocess

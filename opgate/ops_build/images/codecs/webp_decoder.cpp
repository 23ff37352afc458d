// libwebp decodes a picture as a whole: neither its lossless format nor a plane of alpha comes row by row.
#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include <webp/decode.h>

#include "images/codecs/block_means.h"
#include "images/codecs/formats.h"

namespace opgate::codecs {
namespace {

DecodeStatus status_of(VP8StatusCode code) {
  switch (code) {
    case VP8_STATUS_OK: return DecodeStatus::good;
    case VP8_STATUS_OUT_OF_MEMORY: throw std::bad_alloc();
    case VP8_STATUS_UNSUPPORTED_FEATURE: return DecodeStatus::unsupported;
    default: return DecodeStatus::corrupt;
  }
}

bool is(ByteSpan name, const char* wanted) { return std::memcmp(name.data(), wanted, 4) == 0; }

/// The TIFF header with its directories in the chunk EXIF, if the header of the file says that there is one.
ByteSpan exif_of(ByteSpan file) {
  constexpr std::size_t kRiff = 12, kHead = 8;
  constexpr std::uint8_t kHasExif = 0x08;
  constexpr std::array<std::uint8_t, 6> kPrefix = {'E', 'x', 'i', 'f', 0, 0};
  // A chunk lies in the RIFF, whose size counts from behind that size.
  file = file.first(std::min(file.size(), kHead + std::size_t{little_endian(file.subspan(4, 4))}));
  if (file.size() <= kRiff + kHead || !is(file.subspan(kRiff), "VP8X") || !(file[kRiff + kHead] & kHasExif)) return {};
  for (ByteSpan left = file.subspan(kRiff); left.size() >= kHead;) {
    const std::size_t size = little_endian(left.subspan(4, 4)), padded = size + size % 2;
    const ByteSpan body = left.subspan(kHead);
    if (size > body.size()) return {};
    if (is(left, "EXIF")) {
      const bool prefixed = size >= kPrefix.size() && std::ranges::equal(body.first(kPrefix.size()), kPrefix);
      return prefixed ? body.first(size).subspan(kPrefix.size()) : body.first(size);
    }
    left = body.subspan(std::min(padded, body.size()));
  }
  return {};
}

class WebpDecoder final : public Decoder {
 public:
  explicit WebpDecoder(ByteSpan file) : file_(file) {}

  DecodeStatus read_header(std::int64_t max_pixels) {
    WebPBitstreamFeatures features;
    if (const auto status = status_of(WebPGetFeatures(file_.data(), file_.size(), &features));
        status != DecodeStatus::good) {
      return status;
    }
    if (const auto status = check_size(features.width, features.height, max_pixels); status != DecodeStatus::good)
      return status;
    if (features.has_animation) return DecodeStatus::unsupported;
    header_.width = features.width;
    header_.height = features.height;
    header_.orientation = Orientation::of_exif(exif_orientation(exif_of(file_)));
    alpha_ = features.has_alpha != 0;
    return DecodeStatus::good;
  }

  DecodeStatus start(int reduction, std::uint8_t background) override {
    reduction_ = reduction;
    background_ = background;
    if (reduction > 1) means_.start(header_.width, header_.height, reduction);
    row_bytes_ = (alpha_ ? 4 : 3) * static_cast<std::size_t>(header_.width);
    const std::size_t size = row_bytes_ * static_cast<std::size_t>(header_.height);
    pixels_ = std::make_unique_for_overwrite<std::uint8_t[]>(size);
    WebPDecoderConfig config;
    if (!WebPInitDecoderConfig(&config)) return DecodeStatus::unsupported;
    config.output.colorspace = alpha_ ? MODE_RGBA : MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA = {pixels_.get(), static_cast<int>(row_bytes_), size};
    return status_of(WebPDecode(file_.data(), file_.size(), &config));
  }

  DecodeStatus read_row(std::uint8_t* rgb) override {
    const auto read_full_row = [this](std::uint8_t* row) {
      write_rgb(row);
      return DecodeStatus::good;
    };
    return reduction_ == 1 ? read_full_row(rgb) : means_.read(read_full_row, rgb);
  }

  DecodeStatus finish() override { return DecodeStatus::good; }

 private:
  void write_rgb(std::uint8_t* rgb) {
    const std::uint8_t* pixel = pixels_.get() + row_bytes_ * static_cast<std::size_t>(next_row_++);
    if (!alpha_) {
      std::memcpy(rgb, pixel, row_bytes_);
      return;
    }
    for (int x = 0; x < header_.width; ++x, pixel += 4, rgb += 3) {
      for (int c = 0; c < 3; ++c) rgb[c] = over_background(pixel[c], pixel[3], background_);
    }
  }

  ByteSpan file_;
  bool alpha_ = false;
  int reduction_ = 1, next_row_ = 0;
  unsigned background_ = 0;
  std::size_t row_bytes_ = 0;
  std::unique_ptr<std::uint8_t[]> pixels_;  ///< of the whole picture, RGB or RGBA
  BlockMeans means_;
};

}  // namespace

std::unique_ptr<Decoder> open_webp(ByteSpan bytes, std::int64_t max_pixels, DecodeStatus& status) {
  auto decoder = std::make_unique<WebpDecoder>(bytes);
  status = decoder->read_header(max_pixels);
  if (status != DecodeStatus::good) return nullptr;
  return decoder;
}

}  // namespace opgate::codecs

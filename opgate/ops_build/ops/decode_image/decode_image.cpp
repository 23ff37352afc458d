#include "decode_image.h"

#include "images/codecs/decoder.h"

namespace opgate::ops::decode_image {
namespace {

using codecs::DecodeStatus;

/// The background of transparent pixels is white.
constexpr std::uint8_t kBackground = 255;

void copy_row(const std::uint8_t* rgb, std::ptrdiff_t width, std::ptrdiff_t column, std::uint8_t* out) {
  for (std::ptrdiff_t x = 0; x < width; ++x) {
    for (std::ptrdiff_t k = 0; k < 3; ++k) out[3 * x * column + k] = rgb[3 * x + k];
  }
}

DecodeStatus decode(codecs::Decoder& decoder, std::uint8_t* image) {
  const codecs::PictureHeader& header = decoder.header();
  if (const DecodeStatus status = decoder.start(1, kBackground); status != DecodeStatus::good) return status;
  const auto strides =
      codecs::Strides::of(header.orientation, header.upright_width(), header.upright_height(), header.upright_width());
  const bool in_place = strides.column == 1;
  std::vector<std::uint8_t> row(in_place ? 0 : std::size_t{3} * static_cast<std::size_t>(header.width));
  for (std::ptrdiff_t y = 0; y < header.height; ++y) {
    std::uint8_t* out = image + 3 * (strides.origin + y * strides.row);
    const DecodeStatus status = decoder.read_row(in_place ? out : row.data());
    if (status != DecodeStatus::good) return status;
    if (!in_place) copy_row(row.data(), header.width, strides.column, out);
  }
  return decoder.finish();
}

struct Cpu {
  static Status check(const Attributes& attributes, const KnownSizes&) {
    return attributes.integer("max_pixels") >= 1 ? Status() : attributes.refuse("max_pixels", "a positive number");
  }

  Status operator()(Context&, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    DecodeStatus status;
    const auto decoder = codecs::open(in["data"].span<std::uint8_t>(), attributes.integer("max_pixels"), status);
    if (decoder) {
      OPGATE_RETURN_IF_ERROR(out.bind("h", decoder->header().upright_height()));
      OPGATE_RETURN_IF_ERROR(out.bind("w", decoder->header().upright_width()));
      status = decode(*decoder, out["image"].data<std::uint8_t>());
    }
    if (status == DecodeStatus::good) return {};
    return Status::invalid("input 'data': expected a JPEG, PNG, WebP, BMP or GIF, got one that is " +
                           std::string(message(status)) + " (" + std::to_string(in.size("size")) + " bytes)");
  }
};

}  // namespace
}  // namespace opgate::ops::decode_image

OPGATE_CPU_KERNEL(DecodeImage, opgate::ops::decode_image::Cpu)

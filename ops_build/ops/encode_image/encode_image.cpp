#include "encode_image.h"

#include <cstring>

#include "images/codecs/decoder.h"
#include "images/codecs/encoder.h"

namespace opgate::ops::encode_image {
namespace {

Status check(std::int64_t height, std::int64_t width, std::int64_t channels, bool jpeg) {
  const std::int64_t most = jpeg ? codecs::kMaxJpegSide : codecs::kMaxSide;
  if (channels != 1 && channels != 3) {
    return Status::invalid("input 'image': expected 1 (grey) or 3 (RGB) channels, got " + std::to_string(channels));
  }
  if (std::min(height, width) < 1 || std::max(height, width) > most) {
    return Status::invalid("input 'image': expected sides of 1.." + std::to_string(most) + " pixels, got " +
                           std::to_string(height) + " x " + std::to_string(width));
  }
  return {};
}

struct Cpu {
  static Status prepare(const Node& node) {
    const std::int64_t quality = node.attributes().integer("quality");
    if (quality >= 1 && quality <= 100) return {};
    return Status::invalid("attribute 'quality': expected 1..100, got " + std::to_string(quality));
  }

  Status operator()(Context&, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t height = in.size("h"), width = in.size("w"), channels = in.size("c");
    const bool jpeg = attributes.text("format") == "jpeg";
    OPGATE_RETURN_IF_ERROR(check(height, width, channels, jpeg));
    const auto quality = static_cast<int>(attributes.integer("quality"));
    const codecs::Pixels pixels{in["image"].data<std::uint8_t>(), static_cast<int>(width), static_cast<int>(height),
                                static_cast<int>(channels)};
    const codecs::Bytes bytes = jpeg ? codecs::encode_jpeg(pixels, quality) : codecs::encode_png(pixels);
    if (bytes.empty()) return Status::internal("the encoder failed");
    OPGATE_RETURN_IF_ERROR(out.bind("size", static_cast<std::int64_t>(bytes.span().size())));
    std::memcpy(out["data"].data<std::uint8_t>(), bytes.span().data(), bytes.span().size());
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::encode_image

OPGATE_CPU_KERNEL(EncodeImage, opgate::ops::encode_image::Cpu)

#include "encode_image.h"

#include <cstring>

#include "images/codecs/decoder.h"
#include "images/codecs/encoder.h"

namespace opgate::ops::encode_image {
namespace {

struct Cpu {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    const std::int64_t quality = attributes.integer("quality");
    const std::int64_t most = attributes.text("format") == "jpeg" ? codecs::kMaxJpegSide : codecs::kMaxSide;
    const std::optional<std::int64_t> height = sizes["h"], width = sizes["w"], channels = sizes["c"];
    if (quality < 1 || quality > 100) return attributes.refuse("quality", "1..100");
    if (channels && *channels != 1 && *channels != 3) {
      return Status::invalid("input 'image': expected 1 (grey) or 3 (RGB) channels, got " + std::to_string(*channels));
    }
    const auto fits = [&](const std::optional<std::int64_t>& side) { return !side || (*side >= 1 && *side <= most); };
    if (fits(height) && fits(width)) return {};
    const auto text = [](const std::optional<std::int64_t>& side) { return side ? std::to_string(*side) : "?"; };
    return Status::invalid("input 'image': expected sides of 1.." + std::to_string(most) + " pixels, got " +
                           text(height) + " x " + text(width));
  }

  Status operator()(Context&, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t height = in.size("h"), width = in.size("w"), channels = in.size("c");
    const bool jpeg = attributes.text("format") == "jpeg";
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

#include "image_preprocess.h"

#include "core/ends.h"
#include "images/codecs/decoder.h"
#include "letterbox.h"
#include "resampler.h"

namespace opgate::ops::image_preprocess {
namespace {

using codecs::DecodeStatus;

struct Settings {
  std::int64_t height = 0, width = 0, max_pixels = 0;
  std::uint8_t pad = 0;
  images::Normalization normalization{};
  int plane[3]{};  ///< the plane of R, G and B in the output

  Settings() = default;
  explicit Settings(const Attributes& attributes);

  float pad_value(int c) const { return static_cast<float>(pad) * normalization.scale[c] + normalization.bias[c]; }

  float* plane_of(int c, float* image) const { return image + plane[c] * height * width; }
};

Settings::Settings(const Attributes& attributes)
    : height(attributes.integer("height")),
      width(attributes.integer("width")),
      max_pixels(attributes.integer("max_pixels")),
      pad(static_cast<std::uint8_t>(attributes.integer("pad"))) {
  const images::Normalization stated = images::normalization_of(attributes);
  const bool reversed = attributes.text("order") == "BGR";
  for (int k = 0; k < 3; ++k) {
    const int channel = reversed ? 2 - k : k;
    normalization.scale[channel] = stated.scale[k];
    normalization.bias[channel] = stated.bias[k];
    plane[channel] = k;
  }
}

/// Writes the padding around the picture, or everywhere if `box` is empty.
void fill_pad(const Settings& settings, const Letterbox& box, float* image) {
  for (int c = 0; c < 3; ++c) {
    const float value = settings.pad_value(c);
    float* row = settings.plane_of(c, image);
    for (std::int64_t y = 0; y < settings.height; ++y, row += settings.width) {
      const bool inside = y >= box.top && y < box.top + box.height;
      std::fill(row, row + (inside ? box.left : settings.width), value);
      if (inside) std::fill(row + box.left + box.width, row + settings.width, value);
    }
  }
}

DecodeStatus preprocess(std::span<const std::uint8_t> bytes, const Settings& settings, float* image, float* geometry) {
  DecodeStatus status;
  const std::unique_ptr<codecs::Decoder> decoder = codecs::open(bytes, settings.max_pixels, status);
  if (!decoder) return status;
  const codecs::PictureHeader& header = decoder->header();
  const int width = header.upright_width();
  const int height = header.upright_height();
  const Letterbox box = Letterbox::of(width, height, settings.width, settings.height);
  status = decoder->start(box.reduction, settings.pad);
  if (status != DecodeStatus::good) return status;

  // The picture is resized as it is stored. The strides turn it upright.
  const bool transposed = header.orientation.transposed;
  Planes planes{{}, codecs::Strides::of(header.orientation, box.width, box.height, settings.width)};
  for (int c = 0; c < 3; ++c) planes.data[c] = settings.plane_of(c, image) + box.top * settings.width + box.left;
  const auto reduced = [&](int side) { return (side + box.reduction - 1) / box.reduction; };
  status = resample(*decoder, reduced(header.width), reduced(header.height), transposed ? box.height : box.width,
                    transposed ? box.width : box.height, settings.normalization, planes);
  if (status != DecodeStatus::good) return status;
  fill_pad(settings, box, image);
  geometry[0] = static_cast<float>(static_cast<double>(width) / box.width);
  geometry[1] = static_cast<float>(static_cast<double>(height) / box.height);
  geometry[2] = static_cast<float>(box.left);
  geometry[3] = static_cast<float>(box.top);
  geometry[4] = static_cast<float>(width);
  geometry[5] = static_cast<float>(height);
  return status;
}

class Cpu {
 public:
  static Status check(const Attributes& attributes, const KnownSizes&) {
    for (const char* name : {"height", "width"}) {
      const std::int64_t side = attributes.integer(name);
      if (side < 1 || side > codecs::kMaxSide) return attributes.refuse(name, "1..65535");
    }
    if (attributes.integer("max_pixels") < 1) return attributes.refuse("max_pixels", "a positive number");
    if (const std::int64_t pad = attributes.integer("pad"); pad < 0 || pad > 255)
      return attributes.refuse("pad", "0..255");
    return images::check_normalization(attributes);
  }

  Status prepare(const Node& node) {
    settings_ = Settings(node.attributes());
    return {};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const Settings& settings = settings_;
    const std::span<const std::uint8_t> data = in["data"].span<std::uint8_t>();
    const std::span<const std::int32_t> ends = in["ends"].span<std::int32_t>();
    OPGATE_RETURN_IF_ERROR(check_ends(ends, static_cast<std::int64_t>(data.size())));
    auto* const images = out["image"].data<float>();
    auto* const geometries = out["geometry"].data<float>();
    auto* const statuses = out["status"].data<std::int32_t>();
    const std::int64_t image_size = 3 * settings.height * settings.width;
    context.parallel_for(static_cast<std::int64_t>(ends.size()), 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        float* image = images + i * image_size;
        float* geometry = geometries + i * 6;
        const DecodeStatus status = preprocess(row_of(data, ends, i), settings, image, geometry);
        statuses[i] = static_cast<std::int32_t>(status);
        if (status == DecodeStatus::good) continue;
        fill_pad(settings, Letterbox{}, image);
        std::fill(geometry, geometry + 6, 0.0f);
        geometry[0] = geometry[1] = 1.0f;
      }
    });
    return {};
  }

 private:
  Settings settings_;
};

}  // namespace
}  // namespace opgate::ops::image_preprocess

OPGATE_CPU_KERNEL(ImagePreprocess, opgate::ops::image_preprocess::Cpu)

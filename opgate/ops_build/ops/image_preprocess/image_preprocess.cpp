#include "image_preprocess.h"

#include "exact_resize.h"
#include "images/codecs/decoder.h"
#include "kernel_toolkit/row_ends.h"
#include "placement.h"
#include "resampler.h"
#include "settings.h"

namespace opgate::ops::image_preprocess {
namespace {

using codecs::DecodeStatus;

/// Writes the padding around the picture, or everywhere if there is no placement.
void fill_pad(const Settings& settings, const std::optional<Placement>& placement, float* image) {
  const Placement box = placement.value_or(Placement{});
  const std::int64_t left = std::max(0, box.left), top = std::max(0, box.top);
  for (int c = 0; c < settings.channels; ++c) {
    const float value = settings.pad_value(c);
    float* row = settings.plane_of(c, image);
    for (std::int64_t y = 0; y < settings.height; ++y, row += settings.width) {
      const bool inside = y >= top && y < top + box.rows.count;
      std::fill(row, row + (inside ? left : settings.width), value);
      if (inside) std::fill(row + left + box.columns.count, row + settings.width, value);
    }
  }
}

/// Where the first pixel of the picture goes in the plane of channel c.
float* start_of(const Settings& settings, const Placement& box, int c, float* image) {
  return settings.plane_of(c, image) + std::max(0, box.top) * settings.width + std::max(0, box.left);
}

DecodeStatus preprocess_fast(codecs::Decoder& decoder, const Settings& settings, const Placement& box, float* image) {
  const codecs::PictureHeader& header = decoder.header();
  const codecs::Orientation orientation = header.orientation;
  const DecodeStatus status = decoder.start(box.reduction, settings.pad);
  if (status != DecodeStatus::good) return status;

  // The picture is resized as it is stored. The strides turn it upright.
  Planes planes{{}, codecs::Strides::of(orientation, box.columns.count, box.rows.count, settings.width)};
  for (int c = 0; c < 3; ++c) planes.data[c] = start_of(settings, box, c, image);
  const Part columns = orientation.mirrored_x ? box.columns.mirrored() : box.columns;
  const Part rows = orientation.mirrored_y ? box.rows.mirrored() : box.rows;
  const auto reduced = [&](int side) { return (side + box.reduction - 1) / box.reduction; };
  return resample(decoder, reduced(header.width), reduced(header.height), orientation.transposed ? rows : columns,
                  orientation.transposed ? columns : rows, settings.channels == 1, settings.normalization, planes);
}

template <int channels>
void write_planes(const std::uint8_t* pixels, const Settings& settings, const Placement& box, float* image) {
  for (int c = 0; c < channels; ++c) {
    const float scale = settings.normalization.scale[c], bias = settings.normalization.bias[c];
    float* to = start_of(settings, box, c, image);
    const std::uint8_t* from = pixels + c;
    for (int y = 0; y < box.rows.count; ++y, to += settings.width, from += channels * box.columns.count) {
      for (std::ptrdiff_t x = 0; x < box.columns.count; ++x)
        to[x] = static_cast<float>(from[channels * x]) * scale + bias;
    }
  }
}

DecodeStatus preprocess_exactly(codecs::Decoder& decoder, const Settings& settings, const Placement& box,
                                float* image) {
  UprightRows source(decoder, settings.channels);
  if (const DecodeStatus status = source.start(settings.pad); status != DecodeStatus::good) return status;
  const std::size_t size = static_cast<std::size_t>(settings.channels) * static_cast<std::size_t>(box.columns.count) *
                           static_cast<std::size_t>(box.rows.count);
  const auto pixels = std::make_unique_for_overwrite<std::uint8_t[]>(size + UprightRows::kSlack);
  if (const DecodeStatus status = exact_resize(source, settings.filter, box.columns, box.rows, pixels.get());
      status != DecodeStatus::good) {
    return status;
  }
  if (settings.channels == 3) {
    write_planes<3>(pixels.get(), settings, box, image);
  } else {
    write_planes<1>(pixels.get(), settings, box, image);
  }
  return source.finish();
}

DecodeStatus preprocess(std::span<const std::uint8_t> bytes, const Settings& settings, float* image, float* geometry) {
  DecodeStatus status;
  const std::unique_ptr<codecs::Decoder> decoder = codecs::open(bytes, settings.max_pixels, status);
  if (!decoder) return status;
  const int width = decoder->header().upright_width();
  const int height = decoder->header().upright_height();
  const std::optional<Placement> box = Placement::of(width, height, settings.width, settings.height, settings.fit,
                                                     settings.shorter_side, settings.multiple);
  if (!box) return DecodeStatus::unsupported;
  status = settings.filter == Filter::fast ? preprocess_fast(*decoder, settings, *box, image)
                                           : preprocess_exactly(*decoder, settings, *box, image);
  if (status != DecodeStatus::good) return status;
  fill_pad(settings, box, image);
  geometry[0] = static_cast<float>(static_cast<double>(width) / box->width);
  geometry[1] = static_cast<float>(static_cast<double>(height) / box->height);
  geometry[2] = static_cast<float>(box->left);
  geometry[3] = static_cast<float>(box->top);
  geometry[4] = static_cast<float>(width);
  geometry[5] = static_cast<float>(height);
  return status;
}

class Cpu {
 public:
  static Status check(const Attributes& attributes, const KnownSizes&) { return Settings::check(attributes); }

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
    const std::int64_t image_size = settings.channels * settings.height * settings.width;
    context.parallel_for(static_cast<std::int64_t>(ends.size()), 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        float* image = images + i * image_size;
        float* geometry = geometries + i * 6;
        const DecodeStatus status = preprocess(row_of(data, ends, i), settings, image, geometry);
        statuses[i] = static_cast<std::int32_t>(status);
        if (status == DecodeStatus::good) continue;
        fill_pad(settings, std::nullopt, image);
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

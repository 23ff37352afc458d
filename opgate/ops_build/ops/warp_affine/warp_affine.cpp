#include "warp_affine.h"

#include <bit>
#include <cstring>

#include "images/crop_index.h"
#include "kernel_toolkit/elementwise.h"

namespace opgate::ops::warp_affine {
namespace {

/// A pixel in the lower three bytes.
using Packed = std::uint32_t;

Packed packed(const std::uint8_t* pixel) {
  return pixel[0] | static_cast<Packed>(pixel[1]) << 8 | static_cast<Packed>(pixel[2]) << 16;
}

/// The four bytes that begin with a pixel.
Packed loaded(const std::uint8_t* pixel) {
  Packed value;
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(&value, pixel, sizeof value);
  } else {
    value = packed(pixel);
  }
  return value;
}

/// One picture and its size.
struct Picture {
  const std::uint8_t* pixels;
  int height, width;
  Packed border;

  Packed at(int y, int x) const {
    const bool inside = y >= 0 && y < height && x >= 0 && x < width;
    return inside ? packed(pixels + 3 * (std::int64_t{y} * width + x)) : border;
  }
};

/// Pixels of a row of a crop: their places in the picture, and what is there.
class Row {
 public:
  static constexpr int kMost = 64;

  /// Computes the pixels [x, x + count) of row y and writes them to out[c][0], out[c][1], ...
  void run(const Picture& picture, const Map& map, const images::Normalization& normalization, int x, int y, int count,
           float* const out[3]) {
    find(map.a, map.b * y + map.c, x, count, picture.width, columns_, across_);
    find(map.d, map.e * y + map.f, x, count, picture.height, rows_, down_);
    load(picture, count);
    for (int c = 0; c < 3; ++c) blend(8 * c, normalization.scale[c], normalization.bias[c], count, out[c]);
  }

 private:
  static void find(double step, double start, int x, int count, int size, int* pixels, float* weights) {
    for (int i = 0; i < count; ++i) {
      const double at = within(start + step * (x + i), size);
      pixels[i] = pixel_before(at);
      weights[i] = static_cast<float>(at - pixels[i]);
    }
  }

  /// Loads the four pixels around each place.
  void load(const Picture& picture, int count) {
    const std::int64_t stride = std::int64_t{3} * picture.width;
    const auto wide = static_cast<unsigned>(std::max(picture.width - 1, 0));
    const auto high = static_cast<unsigned>(std::max(picture.height - 1, 0));
    for (int i = 0; i < count; ++i) {
      const int row = rows_[i], column = columns_[i];
      // Four bytes of the last pixel of all would be one too many.
      const bool last = row + 2 == picture.height && column + 2 == picture.width;
      if (static_cast<unsigned>(row) < high && static_cast<unsigned>(column) < wide && !last) {
        const std::uint8_t* const pixel = picture.pixels + row * stride + 3 * std::int64_t{column};
        corners_[0][i] = loaded(pixel);
        corners_[1][i] = loaded(pixel + 3);
        corners_[2][i] = loaded(pixel + stride);
        corners_[3][i] = loaded(pixel + stride + 3);
      } else {
        for (int k = 0; k < 4; ++k) corners_[k][i] = picture.at(row + k / 2, column + k % 2);
      }
    }
  }

  void blend(int shift, float scale, float bias, int count, float* out) const {
    const auto value = [&](int corner, int i) {
      return static_cast<float>(static_cast<std::int32_t>(corners_[corner][i] >> shift & 255));
    };
    for (int i = 0; i < count; ++i) {
      const float upper = value(0, i) + (value(1, i) - value(0, i)) * across_[i];
      const float lower = value(2, i) + (value(3, i) - value(2, i)) * across_[i];
      out[i] = (upper + (lower - upper) * down_[i]) * scale + bias;
    }
  }

  alignas(64) int columns_[kMost], rows_[kMost];
  alignas(64) float across_[kMost], down_[kMost];
  alignas(64) Packed corners_[4][kMost];
};

class Cpu : public Checked {
 public:
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Settings settings = Settings::of(attributes);
    const std::int64_t h = in.size("h"), w = in.size("w"), r = in.size("r");
    images::CropIndex index;
    OPGATE_RETURN_IF_ERROR(images::CropIndex::make(in, "matrices", index));
    if (out["tensor"].size() == 0) return {};
    const auto* const pixels = in["image"].data<std::uint8_t>();
    const T* const matrix = in["matrix"].data<T>();
    float* const tensor = out["tensor"].data<float>();
    const int height = settings.height, width = settings.width;
    const std::int64_t plane = std::int64_t{height} * width;
    const std::int64_t grain = std::max<std::int64_t>(1, kElementGrain / (3 * std::int64_t{width}));
    context.parallel_for(r * height, grain, [&](std::int64_t begin, std::int64_t end) {
      Row row;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t crop = i / height;
        const int y = static_cast<int>(i % height);
        const Picture picture{pixels + index.picture_of(crop) * h * w * 3, static_cast<int>(h), static_cast<int>(w),
                              packed(settings.border)};
        const Map map = Map::of(matrix + 6 * crop, settings.maps_to_crop);
        float* const to = tensor + crop * 3 * plane + std::int64_t{y} * width;
        for (int x = 0; x < width; x += Row::kMost) {
          float* const planes[3] = {to + x, to + plane + x, to + 2 * plane + x};
          row.run(picture, map, settings.normalization, x, y, std::min(Row::kMost, width - x), planes);
        }
      }
    });
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::warp_affine

OPGATE_CPU_KERNEL(WarpAffine, opgate::ops::warp_affine::Cpu)

#include "resize_normalize.h"

#include <algorithm>

#include "checks.h"
#include "core/elementwise.h"
#include "rows.h"

namespace opgate::ops {
namespace {

/// One picture and the planes that it becomes.
struct Picture {
  const std::uint8_t* pixels;
  int width, height;

  const std::uint8_t* row(int y) const { return pixels + std::int64_t{3} * width * y; }
};

/// Row y of `height` into out[c][x], between the two rows nearest to it.
class LinearRows {
 public:
  LinearRows(int from_width, int from_height, int width, int height, const Normalization& normalization)
      : down_(bilinear_taps(from_height, height)), across_(bilinear_taps(from_width, width), normalization) {}

  void run(const Picture& picture, int y, std::vector<float>& blended, float* const out[3]) const {
    blended.resize(blended_size(picture.width));
    const Tap tap = down_[static_cast<std::size_t>(y)];
    const int second = std::min(tap.first + 1, picture.height - 1);
    blend_rows(picture.row(tap.first), picture.row(second), tap.weight, picture.width, blended.data());
    across_.run(blended.data(), out, 1);
  }

 private:
  std::vector<Tap> down_;
  RowResampler across_;
};

class NearestRows {
 public:
  NearestRows(int from_width, int from_height, int width, int height, const Normalization& normalization)
      : down_(places(from_height, height)), across_(places(from_width, width)), normalization_(normalization) {}

  void run(const Picture& picture, int y, std::vector<float>&, float* const out[3]) const {
    const std::uint8_t* row = picture.row(down_[static_cast<std::size_t>(y)]);
    for (std::size_t x = 0; x < across_.size(); ++x) {
      const std::uint8_t* pixel = row + std::int64_t{3} * across_[x];
      for (int c = 0; c < 3; ++c) {
        out[c][x] = static_cast<float>(pixel[c]) * normalization_.scale[c] + normalization_.bias[c];
      }
    }
  }

 private:
  static std::vector<int> places(int from, int to) {
    std::vector<int> found(static_cast<std::size_t>(to));
    for (int i = 0; i < to; ++i) found[static_cast<std::size_t>(i)] = nearest_place(i, from, to);
    return found;
  }

  std::vector<int> down_, across_;
  Normalization normalization_;
};

struct ResizeNormalizeCpu {
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    Normalization normalization;
    OPGATE_RETURN_IF_ERROR(read_normalization(attributes, normalization));
    OPGATE_RETURN_IF_ERROR(check_sides(attributes));
    const Tensor& image = in["image"];
    if (out["tensor"].size() == 0) return {};
    OPGATE_RETURN_IF_ERROR(check_pictures(image));
    const auto from_width = static_cast<int>(image.dim(2)), from_height = static_cast<int>(image.dim(1));
    const auto to_width = static_cast<int>(attributes.integer("width"));
    const auto to_height = static_cast<int>(attributes.integer("height"));
    if (attributes.text("interpolation") == "nearest") {
      resize(context, image, NearestRows(from_width, from_height, to_width, to_height, normalization), out["tensor"]);
    } else {
      resize(context, image, LinearRows(from_width, from_height, to_width, to_height, normalization), out["tensor"]);
    }
    return {};
  }

 private:
  /// All rows of all pictures, over the engine's threads.
  template <typename Rows>
  static void resize(Context& context, const Tensor& image, const Rows& rows, const Tensor& tensor) {
    const auto from_width = static_cast<int>(image.dim(2)), from_height = static_cast<int>(image.dim(1));
    const std::int64_t height = tensor.dim(2), width = tensor.dim(3), plane = height * width;
    const auto* const pixels = image.data<const std::uint8_t>();
    auto* const out = tensor.data<float>();
    const std::int64_t grain =
        std::max<std::int64_t>(1, kElementGrain / (3 * std::max<std::int64_t>(width, from_width)));
    context.parallel_for(tensor.dim(0) * height, grain, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> blended;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t n = i / height, y = i % height;
        const Picture picture{pixels + n * 3 * from_width * from_height, from_width, from_height};
        float* const row = out + n * 3 * plane + y * width;
        float* const planes[3] = {row, row + plane, row + 2 * plane};
        rows.run(picture, static_cast<int>(y), blended, planes);
      }
    });
  }
};

}  // namespace
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(ResizeNormalize, opgate::ops::ResizeNormalizeCpu)

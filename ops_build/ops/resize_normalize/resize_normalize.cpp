#include "resize_normalize.h"

#include <variant>

#include "core/elementwise.h"
#include "images/resampling.h"

namespace opgate::ops::resize_normalize {
namespace {

/// One picture and its size.
struct Picture {
  const std::uint8_t* pixels;
  Size size;

  const std::uint8_t* row(int y) const { return pixels + std::int64_t{3} * size.width * y; }
};

/// Writes rows of the result. Each is interpolated between the two nearest rows of the source.
class LinearRows {
 public:
  LinearRows(Size from, const Placement& at, const Settings& settings)
      : down_(images::bilinear_taps(from.height, at.resized.height, at.top, settings.to.height)),
        across_(images::bilinear_taps(from.width, at.resized.width, at.left, settings.to.width),
                settings.normalization) {}

  void run(const Picture& picture, int y, std::vector<float>& blended, float* const out[3]) const {
    const images::Tap tap = down_[static_cast<std::size_t>(y)];
    const int second = std::min(tap.first + 1, picture.size.height - 1), width = picture.size.width;
    if (across_.skips_pixels(width)) return across_.run(picture.row(tap.first), picture.row(second), tap.weight, out);
    blended.resize(images::blended_size(width));
    images::blend_rows(picture.row(tap.first), picture.row(second), tap.weight, width, blended.data());
    across_.run(blended.data(), out, 1);
  }

 private:
  std::vector<images::Tap> down_;
  images::RowResampler across_;
};

/// Writes rows of the result. Each is a weighted sum of rows of the source, and each pixel of pixels of that sum.
class AntialiasedRows {
 public:
  AntialiasedRows(Size from, const Placement& at, const Settings& settings)
      : down_(from.height, at.resized.height, at.top, settings.to.height),
        across_(from.width, at.resized.width, at.left, settings.to.width),
        normalization_(settings.normalization) {
    begin_ = across_.taps.front().first;
    for (const images::FilterTaps& taps : across_.taps) {
      begin_ = std::min(begin_, taps.first);
      end_ = std::max(end_, taps.first + taps.count);
    }
  }

  void run(const Picture& picture, int y, std::vector<float>& sums, float* const out[3]) const {
    const images::FilterTaps& rows = down_.taps[static_cast<std::size_t>(y)];
    const float* const weights = down_.weights_of(y);
    const std::int64_t count = std::int64_t{3} * (end_ - begin_);
    sums.assign(static_cast<std::size_t>(count), 0);
    for (int k = 0; k < rows.count; ++k)
      add(picture.row(rows.first + k) + std::int64_t{3} * begin_, weights[k], count, sums.data());
    for (std::size_t x = 0; x < across_.taps.size(); ++x) {
      const images::FilterTaps& taps = across_.taps[x];
      const float* const weights_across = across_.weights_of(static_cast<int>(x));
      const float* from = sums.data() + std::int64_t{3} * (taps.first - begin_);
      float total[3] = {};
      for (int k = 0; k < taps.count; ++k, from += 3) {
        for (int c = 0; c < 3; ++c) total[c] += weights_across[k] * from[c];
      }
      for (int c = 0; c < 3; ++c) out[c][x] = total[c] * normalization_.scale[c] + normalization_.bias[c];
    }
  }

 private:
  /// The filters of an axis, and the weights of all of them.
  struct Filters {
    std::vector<images::FilterTaps> taps;
    std::vector<float> weights;
    std::vector<std::size_t> begins;

    Filters(int from, int resized, int offset, int count) {
      const double step = static_cast<double>(from) / resized;
      for (int i = 0; i < count; ++i) {
        const images::FilterTaps& filter = taps.emplace_back(images::triangle_taps(offset + i, step, from));
        begins.push_back(weights.size());
        for (int k = 0; k < filter.count; ++k) weights.push_back(filter.weight(k));
      }
    }

    const float* weights_of(int i) const { return weights.data() + begins[static_cast<std::size_t>(i)]; }
  };

  static void add(const std::uint8_t* __restrict__ row, float weight, std::int64_t count, float* __restrict__ sums) {
    for (std::int64_t i = 0; i < count; ++i) sums[i] += weight * static_cast<float>(row[i]);
  }

  Filters down_, across_;
  images::Normalization normalization_;
  int begin_ = 0, end_ = 0;  ///< the columns of the source that the result depends on
};

/// Writes rows of the result. Each pixel is the nearest pixel of the source.
class NearestRows {
 public:
  NearestRows(Size from, const Placement& at, const Settings& settings)
      : down_(pixels_of(from.height, at.resized.height, at.top, settings.to.height)),
        across_(pixels_of(from.width, at.resized.width, at.left, settings.to.width)),
        normalization_(settings.normalization) {}

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
  static std::vector<int> pixels_of(int from, int resized, int offset, int count) {
    std::vector<int> found(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i)
      found[static_cast<std::size_t>(i)] = images::nearest_pixel(offset + i, from, resized);
    return found;
  }

  std::vector<int> down_, across_;
  images::Normalization normalization_;
};

using Rows = std::variant<LinearRows, AntialiasedRows, NearestRows>;

class Cpu : public Checked {
 public:
  Status prepare(const Node& node) {
    settings_ = Settings::of(node.attributes());
    if (const auto size = known_size(node)) rows_ = rows_for(*size);
    return {};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    if (out["tensor"].size() == 0) return {};
    const Size size = size_of_call(in);
    const auto run = [&](const auto& rows) { resize(context, in["image"], size, rows, out["tensor"]); };
    if (rows_)
      std::visit(run, *rows_);
    else
      std::visit(run, rows_for(size));
    return {};
  }

 private:
  Rows rows_for(Size from) const {
    const Placement at = Placement::of(from, settings_);
    if (settings_.antialias) return AntialiasedRows(from, at, settings_);
    if (settings_.linear) return LinearRows(from, at, settings_);
    return NearestRows(from, at, settings_);
  }

  /// Writes all rows of all pictures, on the engine's threads.
  template <typename Kind>
  static void resize(Context& context, const Tensor& image, Size size, const Kind& rows, const MutableTensor& tensor) {
    const std::int64_t height = tensor.dim(2), width = tensor.dim(3), plane = height * width;
    const auto* const pixels = image.data<std::uint8_t>();
    auto* const out = tensor.data<float>();
    const std::int64_t grain =
        std::max<std::int64_t>(1, kElementGrain / (3 * std::max<std::int64_t>(width, size.width)));
    context.parallel_for(tensor.dim(0) * height, grain, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> blended;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t n = i / height, y = i % height;
        const Picture picture{pixels + n * 3 * size.width * size.height, size};
        float* const row = out + n * 3 * plane + y * width;
        float* const planes[3] = {row, row + plane, row + 2 * plane};
        rows.run(picture, static_cast<int>(y), blended, planes);
      }
    });
  }

  Settings settings_;
  std::optional<Rows> rows_;  ///< for the static size of the pictures
};

}  // namespace
}  // namespace opgate::ops::resize_normalize

OPGATE_CPU_KERNEL(ResizeNormalize, opgate::ops::resize_normalize::Cpu)

#include "resize_normalize.h"

#include <variant>

#include "images/resampling.h"
#include "kernel_toolkit/elementwise.h"

namespace opgate::ops::resize_normalize {
namespace {

/// One picture and its size.
template <int channels>
struct Picture {
  const std::uint8_t* pixels;
  Size size;

  const std::uint8_t* row(int y) const { return pixels + std::int64_t{channels} * size.width * y; }
};

/// Writes rows of the result. Each is interpolated between the two nearest rows of the source.
template <int channels>
class LinearRows {
 public:
  LinearRows(Size from, const Placement& at, const Settings& settings)
      : down_(images::bilinear_taps(from.height, at.resized.height, at.top, settings.to.height)),
        across_(images::bilinear_taps(from.width, at.resized.width, at.left, settings.to.width)),
        normalization_(settings.normalization) {}

  void run(const Picture<channels>& picture, int y, std::vector<float>& blended, float* const out[channels]) const {
    const images::Tap tap = down_[static_cast<std::size_t>(y)];
    const int below = std::min(tap.first + 1, picture.size.height - 1), width = picture.size.width;
    const std::uint8_t *const first = picture.row(tap.first), *const second = picture.row(below);
    const auto value = [&](std::int64_t i) {
      const auto above = static_cast<float>(first[i]);
      return above + (static_cast<float>(second[i]) - above) * tap.weight;
    };
    // A row that becomes much shorter is blended only where the result needs it.
    if (static_cast<std::size_t>(width) > 3 * across_.size()) return write(value, width, out);
    blended.resize(static_cast<std::size_t>(width) * channels);
    float* const row = blended.data();
    for (std::int64_t i = 0; i < std::int64_t{channels} * width; ++i) row[i] = value(i);
    write([row](std::int64_t i) { return row[i]; }, width, out);
  }

 private:
  /// Interpolates between the neighbours of a row, of which value(i) is number i.
  template <typename Value>
  void write(const Value& value, int width, float* const out[channels]) const {
    for (std::size_t x = 0; x < across_.size(); ++x) {
      const images::Tap tap = across_[x];
      const std::int64_t left = std::int64_t{channels} * tap.first;
      const std::int64_t right = std::int64_t{channels} * std::min(tap.first + 1, width - 1);
      for (int c = 0; c < channels; ++c) {
        const float near = value(left + c);
        const float between = near + (value(right + c) - near) * tap.weight;
        out[c][x] = between * normalization_.scale[c] + normalization_.bias[c];
      }
    }
  }

  std::vector<images::Tap> down_, across_;
  images::Normalization normalization_;
};

/// The same for RGB, whose rows ImagePreprocess resamples too.
template <>
class LinearRows<3> {
 public:
  LinearRows(Size from, const Placement& at, const Settings& settings)
      : down_(images::bilinear_taps(from.height, at.resized.height, at.top, settings.to.height)),
        across_(images::bilinear_taps(from.width, at.resized.width, at.left, settings.to.width),
                settings.normalization) {}

  void run(const Picture<3>& picture, int y, std::vector<float>& blended, float* const out[3]) const {
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
template <int channels>
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

  void run(const Picture<channels>& picture, int y, std::vector<float>& sums, float* const out[channels]) const {
    const images::FilterTaps& rows = down_.taps[static_cast<std::size_t>(y)];
    const float* const weights = down_.weights_of(y);
    const std::int64_t count = std::int64_t{channels} * (end_ - begin_);
    sums.assign(static_cast<std::size_t>(count), 0);
    for (int k = 0; k < rows.count; ++k)
      add(picture.row(rows.first + k) + std::int64_t{channels} * begin_, weights[k], count, sums.data());
    for (std::size_t x = 0; x < across_.taps.size(); ++x) {
      const images::FilterTaps& taps = across_.taps[x];
      const float* const weights_across = across_.weights_of(static_cast<int>(x));
      const float* from = sums.data() + std::int64_t{channels} * (taps.first - begin_);
      float total[channels] = {};
      for (int k = 0; k < taps.count; ++k, from += channels) {
        for (int c = 0; c < channels; ++c) total[c] += weights_across[k] * from[c];
      }
      for (int c = 0; c < channels; ++c) out[c][x] = total[c] * normalization_.scale[c] + normalization_.bias[c];
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
template <int channels>
class NearestRows {
 public:
  NearestRows(Size from, const Placement& at, const Settings& settings)
      : down_(pixels_of(from.height, at.resized.height, at.top, settings.to.height)),
        across_(pixels_of(from.width, at.resized.width, at.left, settings.to.width)),
        normalization_(settings.normalization) {}

  void run(const Picture<channels>& picture, int y, std::vector<float>&, float* const out[channels]) const {
    const std::uint8_t* row = picture.row(down_[static_cast<std::size_t>(y)]);
    for (std::size_t x = 0; x < across_.size(); ++x) {
      const std::uint8_t* pixel = row + std::int64_t{channels} * across_[x];
      for (int c = 0; c < channels; ++c) {
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

template <int channels>
using RowsOf = std::variant<LinearRows<channels>, AntialiasedRows<channels>, NearestRows<channels>>;

/// The rows of pictures of a number of channels.
using Rows = std::variant<RowsOf<1>, RowsOf<3>, RowsOf<4>>;

class Cpu : public Checked {
 public:
  Status prepare(const Node& node) {
    settings_ = Settings::of(node.attributes());
    // Pictures whose number of channels isn't static are nearly always RGB.
    channels_ = node.size("c").value_or(3);
    if (const auto size = known_size(node)) rows_ = rows_for(*size, channels_);
    return {};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const MutableTensor& tensor = out["tensor"];
    if (tensor.size() == 0) return {};
    const Size size = size_of_call(in);
    const std::int64_t channels = tensor.dim(1);
    const auto run = [&]<int count>(const RowsOf<count>& all) {
      std::visit([&](const auto& rows) { resize<count>(context, in["image"], size, rows, tensor); }, all);
    };
    const auto run_any = [&](const auto& all) { run(all); };
    if (rows_ && channels == channels_)
      std::visit(run_any, *rows_);
    else
      std::visit(run_any, rows_for(size, channels));
    return {};
  }

 private:
  Rows rows_for(Size from, std::int64_t channels) const {
    if (channels == 1) return rows_of<1>(from);
    if (channels == 4) return rows_of<4>(from);
    return rows_of<3>(from);
  }

  template <int channels>
  RowsOf<channels> rows_of(Size from) const {
    const Placement at = Placement::of(from, settings_);
    if (settings_.antialias) return AntialiasedRows<channels>(from, at, settings_);
    if (settings_.linear) return LinearRows<channels>(from, at, settings_);
    return NearestRows<channels>(from, at, settings_);
  }

  /// Writes all rows of all pictures, on the engine's threads.
  template <int channels, typename Kind>
  static void resize(Context& context, const Tensor& image, Size size, const Kind& rows, const MutableTensor& tensor) {
    const std::int64_t height = tensor.dim(2), width = tensor.dim(3), plane = height * width;
    const auto* const pixels = image.data<std::uint8_t>();
    auto* const out = tensor.data<float>();
    const std::int64_t grain =
        std::max<std::int64_t>(1, kElementGrain / (channels * std::max<std::int64_t>(width, size.width)));
    context.parallel_for(tensor.dim(0) * height, grain, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> scratch;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t n = i / height, y = i % height;
        const Picture<channels> picture{pixels + n * channels * size.width * size.height, size};
        float* planes[channels];
        for (int c = 0; c < channels; ++c) planes[c] = out + (n * channels + c) * plane + y * width;
        rows.run(picture, static_cast<int>(y), scratch, planes);
      }
    });
  }

  Settings settings_;
  std::int64_t channels_ = 3;
  std::optional<Rows> rows_;  ///< for the static size of the pictures
};

}  // namespace
}  // namespace opgate::ops::resize_normalize

OPGATE_CPU_KERNEL(ResizeNormalize, opgate::ops::resize_normalize::Cpu)

#include "roi_align_rotated_backward.h"

#include <vector>

#include "kernel_toolkit/elementwise.h"

namespace opgate::ops::roi_align_rotated_backward {
namespace {

/// So many channels of a picture a thread computes together: a loop over them vectorizes, and the place of a sample is
/// found once for all.
constexpr std::int64_t kChannels = 16;

/// The gradient of some channels of a picture.
template <typename T>
class Planes {
 public:
  Planes(const T* grad_output, std::int64_t channels, Settings settings, std::int64_t height, std::int64_t width)
      : grad_output_(grad_output),
        channels_(channels),
        settings_(settings),
        height_(static_cast<int>(height)),
        width_(static_cast<int>(width)),
        sums_(static_cast<std::size_t>(height * width * kChannels)) {}

  void clear() { std::ranges::fill(sums_, 0.0); }

  /// Adds what a region gives to the channels [first, first + count).
  void add(std::int64_t number, const Region& region, std::int64_t first, std::int64_t count) {
    const T* const from = grad_output_ + (number * channels_ + first) * settings_.bins();
    for (int row = 0; row < settings_.height; ++row) {
      for (int column = 0; column < settings_.width; ++column) {
        double gradients[kChannels] = {};
        for (std::int64_t c = 0; c < count; ++c) {
          const auto value = static_cast<float>(from[c * settings_.bins() + row * settings_.width + column]);
          gradients[c] = static_cast<double>(value) / static_cast<double>(region.samples());
        }
        add_bin(region, row, column, gradients);
      }
    }
  }

  /// Writes channel `c` of those that were added.
  void write(std::int64_t c, T* to) const {
    const std::int64_t pixels = std::int64_t{height_} * width_;
    for (std::int64_t i = 0; i < pixels; ++i)
      to[i] = static_cast<T>(static_cast<float>(sums_[static_cast<std::size_t>(i * kChannels + c)]));
  }

 private:
  void add_bin(const Region& region, int row, int column, const double* gradients) {
    for (int down = 0; down < region.samples_down; ++down) {
      const SampleRange range = SampleRange::inside(region, settings_, height_, width_, row, column, down);
      for (int across = range.begin; across < range.end; ++across) {
        const Sample sample = sample_of(region, settings_, height_, width_, row, column, down, across);
        if (!sample.inside()) continue;
        for (int corner = 0; corner < 4; ++corner) {
          const double weight = sample.weight(corner);
          if (weight == 0) continue;  // it has some pixel, for which NaN isn't meant
          double* const to = sums_.data() + sample.place(corner, width_) * kChannels;
          for (std::int64_t c = 0; c < kChannels; ++c) to[c] += weight * gradients[c];
        }
      }
    }
  }

  const T* grad_output_;
  std::int64_t channels_;
  Settings settings_;
  int height_, width_;
  std::vector<double> sums_;  ///< by pixel, then channel
};

struct Cpu : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Settings settings = Settings::of(attributes, in.size("y"), in.size("x"));
    const std::int64_t n = in.size("n"), c = in.size("c"), h = in.size("h"), w = in.size("w"), r = in.size("r");
    OPGATE_RETURN_IF_ERROR(roi_align_rotated::check_rois(in["rois"], n, settings));
    if (out["grad_input"].size() == 0) return {};
    const T* const grad_output = in["grad_output"].data<T>();
    const auto* const rois = in["rois"].data<float>();
    T* const grad_input = out["grad_input"].data<T>();
    const std::int64_t blocks = (c + kChannels - 1) / kChannels;
    // Each thread goes over the regions in their order: the result is the same for any number of threads.
    context.parallel_for(n * blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      Planes<T> planes(grad_output, c, settings, h, w);
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t picture = i / blocks, first = i % blocks * kChannels, count = std::min(kChannels, c - first);
        planes.clear();
        for (std::int64_t roi = 0; roi < r; ++roi) {
          const Region region = Region::of(rois + 6 * roi, n, settings);
          if (region.picture == picture && region.samples() > 0) planes.add(roi, region, first, count);
        }
        for (std::int64_t k = 0; k < count; ++k) planes.write(k, grad_input + (picture * c + first + k) * h * w);
      }
    });
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::roi_align_rotated_backward

OPGATE_CPU_KERNEL(RoiAlignRotatedBackward, opgate::ops::roi_align_rotated_backward::Cpu)

#include "roi_align_rotated.h"

#include <span>
#include <vector>

#include "kernel_toolkit/elementwise.h"
#include "kernel_toolkit/rows.h"

namespace opgate::ops::roi_align_rotated {
namespace {

/// So many places and weights a thread holds at once, 32 bytes each.
constexpr std::int64_t kHeld = 1 << 16;
/// So many bins keep the vectorized loop over them busy.
constexpr std::int64_t kFewBins = 16;

/// The size of a picture.
struct Size {
  int height, width;
};

/// Where the samples of some bins of a region are in a plane. Sample s of bin i has the index s * bins + i: a loop over
/// the bins vectorizes.
class Samples {
 public:
  /// Finds the samples of `bins` bins from bin `first` on.
  void find(const Region& region, const Settings& settings, Size size, std::int64_t first, std::int64_t bins) {
    bins_ = static_cast<std::size_t>(bins);
    count_ = static_cast<std::size_t>(region.samples());
    const std::size_t all = bins_ * count_;
    for (auto& places : places_) places.resize(all);
    for (auto& weights : weights_) weights.resize(all);
    any_outside_ = false;
    first_row_ = size.height;
    int last_row = -1;
    std::size_t at = 0;
    for (int down = 0; down < region.samples_down; ++down) {
      for (int across = 0; across < region.samples_across; ++across) {
        int row = static_cast<int>(first / settings.width), column = static_cast<int>(first % settings.width);
        for (const std::size_t end = at + bins_; at < end; ++at) {
          const Sample s = sample_of(region, settings, size.height, size.width, row, column, down, across);
          if (s.inside()) {
            first_row_ = std::min(first_row_, s.rows[0]);
            last_row = std::max(last_row, s.rows[1]);
          } else {
            any_outside_ = true;
          }
          for (int corner = 0; corner < 4; ++corner) {
            places_[corner][at] = s.place(corner, size.width);
            weights_[corner][at] = s.weight(corner);
          }
          if (++column == settings.width) {
            column = 0;
            ++row;
          }
        }
      }
    }
    if (last_row < 0) count_ = 0;  // all are outside
    rows_ = last_row - first_row_ + 1;
    // The places are relative to the first row that is needed. A sample outside may have had a place before it.
    const std::int32_t before = last_row < 0 ? 0 : first_row_ * size.width;
    for (auto& places : places_) {
      for (std::int32_t& place : places) place = std::max(place - before, 0);
    }
  }

  bool empty() const { return count_ == 0; }
  std::int64_t first_row() const { return first_row_; }
  std::int64_t rows() const { return rows_; }

  /// Writes the mean of the samples of each bin. `plane` begins with the first row that is needed.
  void average(const float* plane, float* bins) const {
    add<false>(plane, bins);
    if (any_outside_ && std::any_of(bins, bins + bins_, [](float bin) { return bin != bin; })) add<true>(plane, bins);
    const float share = 1 / static_cast<float>(count_);
    for (std::size_t i = 0; i < bins_; ++i) bins[i] *= share;
  }

 private:
  /// Adds up the samples of each bin. One outside has the weights 0 and some pixel, which makes NaN if that is infinite
  /// or NaN: only then it is worth the time to be `careful` and to leave such samples out.
  template <bool careful>
  void add(const float* __restrict__ plane, float* __restrict__ bins) const {
    std::fill_n(bins, bins_, 0.0f);
    const auto n = static_cast<std::int64_t>(bins_);
    for (std::size_t s = 0; s < count_; ++s) {
      const std::int32_t *const a = &places_[0][s * bins_], *const b = &places_[1][s * bins_],
                                *const c = &places_[2][s * bins_], *const d = &places_[3][s * bins_];
      const float *const u = &weights_[0][s * bins_], *const v = &weights_[1][s * bins_],
                         *const w = &weights_[2][s * bins_], *const z = &weights_[3][s * bins_];
      for (std::int64_t i = 0; i < n; ++i) {
        const float value = u[i] * plane[a[i]] + v[i] * plane[b[i]] + w[i] * plane[c[i]] + z[i] * plane[d[i]];
        bins[i] += careful && u[i] + v[i] + w[i] + z[i] == 0 ? 0 : value;
      }
    }
  }

  std::size_t bins_ = 0, count_ = 0;
  int first_row_ = 0, rows_ = 0;
  std::vector<std::int32_t> places_[4];
  std::vector<float> weights_[4];
  bool any_outside_ = false;
};

/// The bins of a region with many samples, one after the other. Of the samples of a bin it holds some at a time.
class LargeBins {
 public:
  LargeBins(const Region& region, const Settings& settings, Size size)
      : region_(region), settings_(settings), size_(size) {
    for (auto& places : places_) places.resize(kChunk);
    for (auto& weights : weights_) weights.resize(kChunk);
  }

  /// Writes the means of the samples of bin `bin` to means[0, channels). `planes` are those of the channels.
  void average(std::int64_t bin, const float* planes, std::int64_t channels, double* means) {
    const int row = static_cast<int>(bin / settings_.width), column = static_cast<int>(bin % settings_.width);
    std::fill_n(means, channels, 0.0);
    held_ = 0;
    for (int down = 0; down < region_.samples_down; ++down) {
      const SampleRange range = SampleRange::inside(region_, settings_, size_.height, size_.width, row, column, down);
      for (int across = range.begin; across < range.end; ++across) {
        const Sample s = sample_of(region_, settings_, size_.height, size_.width, row, column, down, across);
        if (!s.inside()) continue;
        for (int corner = 0; corner < 4; ++corner) {
          places_[corner][held_] = s.place(corner, size_.width);
          weights_[corner][held_] = s.weight(corner);
        }
        if (++held_ == kChunk) add(planes, channels, means);
      }
    }
    add(planes, channels, means);
    for (std::int64_t c = 0; c < channels; ++c) means[c] /= static_cast<double>(region_.samples());
  }

 private:
  static constexpr std::size_t kChunk = 4096, kLanes = 16;

  /// Adds the samples that are held to the sums.
  void add(const float* planes, std::int64_t channels, double* sums) {
    const std::int32_t *const a = places_[0].data(), *const b = places_[1].data(), *const c = places_[2].data(),
                              *const d = places_[3].data();
    const float *const u = weights_[0].data(), *const v = weights_[1].data(), *const w = weights_[2].data(),
                       *const z = weights_[3].data();
    for (std::int64_t channel = 0; channel < channels; ++channel, planes += std::int64_t{size_.height} * size_.width) {
      const auto value = [=](std::size_t i) {
        return u[i] * planes[a[i]] + v[i] * planes[b[i]] + w[i] * planes[c[i]] + z[i] * planes[d[i]];
      };
      float lanes[kLanes] = {};
      std::size_t i = 0;
      for (; i + kLanes <= held_; i += kLanes) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += value(i + lane);
      }
      for (std::size_t lane = 0; i < held_; ++i, ++lane) lanes[lane] += value(i);
      for (const float lane : lanes) sums[channel] += static_cast<double>(lane);
    }
    held_ = 0;
  }

  Region region_;
  Settings settings_;
  Size size_;
  std::size_t held_ = 0;
  std::vector<std::int32_t> places_[4];
  std::vector<float> weights_[4];
};

/// The channels of a picture that a thread computes for a region.
template <typename T>
struct Channels {
  const T* planes;
  const float* wide;  ///< the same as floats; null if no region of the call needs it
  std::int64_t count;
  T* bins;
};

struct Cpu : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Settings settings =
        Settings::of(attributes, attributes.integer("output_height"), attributes.integer("output_width"));
    const std::int64_t n = in.size("n"), c = in.size("c"), h = in.size("h"), w = in.size("w"), r = in.size("r");
    OPGATE_RETURN_IF_ERROR(check_rois(in["rois"], n, settings));
    if (out["output"].size() == 0) return {};
    const T* const input = in["input"].data<T>();
    const auto* const rois = in["rois"].data<float>();
    T* const output = out["output"].data<T>();
    bool any_large = false;
    for (std::int64_t i = 0; i < r; ++i) any_large |= is_large(Region::of(rois + 6 * i, n, settings));
    const float* const wide = any_large ? rows::wide<T>(context, in["input"]) : nullptr;
    // The channels of few regions are spread over the threads, too.
    const std::int64_t parts = r < kFewRegions ? (c + kChannels - 1) / kChannels : 1;
    context.parallel_for(r * parts, 1, [&](std::int64_t begin, std::int64_t end) {
      Samples samples;
      std::vector<float> plane;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t roi = i / parts, first = i % parts * c / parts, last = (i % parts + 1) * c / parts;
        const Region region = Region::of(rois + 6 * roi, n, settings);
        T* const to = output + (roi * c + first) * settings.bins();
        if (h == 0 || w == 0 || region.samples() == 0) {
          std::fill_n(to, (last - first) * settings.bins(), static_cast<T>(0.0f));
          continue;
        }
        const std::int64_t at = (region.picture * c + first) * h * w;
        const Channels<T> channels{input + at, wide ? wide + at : nullptr, last - first, to};
        const Size size{static_cast<int>(h), static_cast<int>(w)};
        if (is_large(region)) {
          run_large(region, settings, size, channels);
        } else {
          run(region, settings, size, channels, samples, plane);
        }
      }
    });
    return {};
  }

 private:
  static constexpr std::int64_t kFewRegions = 64, kChannels = 32;

  /// Whether a bin has so many samples that those of few bins are all that a thread holds.
  static bool is_large(const Region& region) { return region.samples() > kHeld / kFewBins; }

  template <typename T>
  static void run(const Region& region, const Settings& settings, Size size, const Channels<T>& channels,
                  Samples& samples, std::vector<float>& plane) {
    const std::int64_t bins = settings.bins(), together = std::min(bins, kHeld / region.samples());
    std::vector<float> averages(static_cast<std::size_t>(together));
    for (std::int64_t first = 0; first < bins; first += together) {
      const std::int64_t count = std::min(together, bins - first);
      samples.find(region, settings, size, first, count);
      T* to = channels.bins + first;
      for (std::int64_t channel = 0; channel < channels.count; ++channel, to += bins) {
        if (samples.empty()) {
          std::fill_n(to, count, static_cast<T>(0.0f));
          continue;
        }
        const T* const from = channels.planes + (channel * size.height + samples.first_row()) * size.width;
        if constexpr (std::is_same_v<T, float>) {
          samples.average(from, to);
        } else {
          plane.resize(static_cast<std::size_t>(samples.rows() * size.width));
          widen(from, plane.data(), samples.rows() * size.width);
          samples.average(plane.data(), averages.data());
          narrow(averages.data(), to, count);
        }
      }
    }
  }

  template <typename T>
  static void run_large(const Region& region, const Settings& settings, Size size, const Channels<T>& channels) {
    LargeBins large(region, settings, size);
    std::vector<double> means(static_cast<std::size_t>(channels.count));
    for (std::int64_t bin = 0; bin < settings.bins(); ++bin) {
      large.average(bin, channels.wide, channels.count, means.data());
      for (std::int64_t channel = 0; channel < channels.count; ++channel) {
        channels.bins[channel * settings.bins() + bin] =
            static_cast<T>(static_cast<float>(means[static_cast<std::size_t>(channel)]));
      }
    }
  }
};

}  // namespace
}  // namespace opgate::ops::roi_align_rotated

OPGATE_CPU_KERNEL(RoiAlignRotated, opgate::ops::roi_align_rotated::Cpu)

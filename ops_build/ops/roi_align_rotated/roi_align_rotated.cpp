#include "roi_align_rotated.h"

#include <span>
#include <vector>

#include "core/elementwise.h"

namespace opgate::ops::roi_align_rotated {
namespace {

/// Where the samples of a region are in a plane. Sample s of bin i has the index s * bins + i: a loop over the bins
/// vectorizes.
class Samples {
 public:
  void find(const Region& region, const Settings& settings, int height, int width) {
    bins_ = static_cast<std::size_t>(settings.height) * static_cast<std::size_t>(settings.width);
    count_ = static_cast<std::size_t>(region.samples_across) * static_cast<std::size_t>(region.samples_down);
    const std::size_t all = bins_ * count_;
    for (auto& places : places_) places.resize(all);
    for (auto& weights : weights_) weights.resize(all);
    first_row_ = height;
    int last_row = -1;
    std::size_t at = 0;
    for (int down = 0; down < region.samples_down; ++down) {
      for (int across = 0; across < region.samples_across; ++across) {
        for (int row = 0; row < settings.height; ++row) {
          for (int column = 0; column < settings.width; ++column, ++at) {
            const Sample s = sample_of(region, settings, height, width, row, column, down, across);
            if (s.upper + s.lower > 0) {
              first_row_ = std::min(first_row_, s.rows[0]);
              last_row = std::max(last_row, s.rows[1]);
            }
            for (std::size_t corner = 0; corner < 4; ++corner) {
              places_[corner][at] = s.rows[corner / 2] * width + s.columns[corner % 2];
              weights_[corner][at] = (corner / 2 ? s.lower : s.upper) * (corner % 2 ? s.right : s.left);
            }
          }
        }
      }
    }
    if (last_row < 0) count_ = 0;  // all are outside
    rows_ = last_row - first_row_ + 1;
    // The places are relative to the first row that is needed. A weight of 0 may have had a place before it.
    const std::int32_t before = last_row < 0 ? 0 : first_row_ * width;
    for (auto& places : places_) {
      for (std::int32_t& place : places) place = std::max(place - before, 0);
    }
  }

  bool empty() const { return count_ == 0; }
  std::int64_t first_row() const { return first_row_; }
  std::int64_t rows() const { return rows_; }

  /// Writes the mean of the samples of each bin. `plane` begins with the first row that is needed.
  void average(const float* plane, float* bins) const {
    std::fill_n(bins, bins_, 0.0f);
    const auto n = static_cast<std::int64_t>(bins_);
    for (std::size_t s = 0; s < count_; ++s) {
      const std::int32_t *const a = &places_[0][s * bins_], *const b = &places_[1][s * bins_],
                                *const c = &places_[2][s * bins_], *const d = &places_[3][s * bins_];
      const float *const u = &weights_[0][s * bins_], *const v = &weights_[1][s * bins_],
                         *const w = &weights_[2][s * bins_], *const z = &weights_[3][s * bins_];
      for (std::int64_t i = 0; i < n; ++i)
        bins[i] += u[i] * plane[a[i]] + v[i] * plane[b[i]] + w[i] * plane[c[i]] + z[i] * plane[d[i]];
    }
    const float share = 1 / static_cast<float>(count_);
    for (std::int64_t i = 0; i < n; ++i) bins[i] *= share;
  }

 private:
  std::size_t bins_ = 0, count_ = 0;
  int first_row_ = 0, rows_ = 0;
  std::vector<std::int32_t> places_[4];
  std::vector<float> weights_[4];
};

struct Cpu : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Settings settings = Settings::of(attributes);
    const std::int64_t n = in.size("n"), c = in.size("c"), h = in.size("h"), w = in.size("w"), r = in.size("r");
    OPGATE_RETURN_IF_ERROR(check_rois(in["rois"], n, settings));
    if (out["output"].size() == 0) return {};
    const T* const input = in["input"].data<T>();
    const auto* const rois = in["rois"].data<float>();
    T* const output = out["output"].data<T>();
    const std::int64_t bins = std::int64_t{settings.height} * settings.width;
    // The channels of few regions are spread over the threads, too.
    const std::int64_t parts = r < kFewRegions ? (c + kChannels - 1) / kChannels : 1;
    context.parallel_for(r * parts, 1, [&](std::int64_t begin, std::int64_t end) {
      Samples samples;
      std::vector<float> plane, averages(static_cast<std::size_t>(bins));
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t roi = i / parts, first = i % parts * c / parts, last = (i % parts + 1) * c / parts;
        const Region region = Region::of(rois + 6 * roi, n, settings);
        T* to = output + (roi * c + first) * bins;
        if (h > 0 && w > 0) samples.find(region, settings, static_cast<int>(h), static_cast<int>(w));
        if (h == 0 || w == 0 || samples.empty()) {
          std::fill_n(to, (last - first) * bins, static_cast<T>(0.0f));
          continue;
        }
        for (std::int64_t channel = first; channel < last; ++channel, to += bins) {
          const T* const from = input + ((region.picture * c + channel) * h + samples.first_row()) * w;
          if constexpr (std::is_same_v<T, float>) {
            samples.average(from, to);
          } else {
            plane.resize(static_cast<std::size_t>(samples.rows() * w));
            widen(from, plane.data(), samples.rows() * w);
            samples.average(plane.data(), averages.data());
            narrow(averages.data(), to, bins);
          }
        }
      }
    });
    return {};
  }

 private:
  static constexpr std::int64_t kFewRegions = 64, kChannels = 32;

  static Status check_rois(const Tensor& rois, std::int64_t n, const Settings& settings) {
    const std::span<const float> values = rois.span<float>();
    for (std::size_t i = 0; i < values.size(); i += 6) {
      const auto wrong = [&](std::size_t column, const std::string& expected) {
        return Status::invalid("input 'rois': element " + std::to_string(i + column) + " is " +
                               std::to_string(values[i + column]) + ", expected " + expected);
      };
      if (!(values[i] >= 0 && values[i] < static_cast<float>(n)))
        return wrong(0, "the number of a picture, below " + std::to_string(n));
      for (const std::size_t side : {std::size_t{3}, std::size_t{4}}) {
        if (settings.aligned && values[i + side] < 0) return wrong(side, "a side that isn't negative");
      }
    }
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::roi_align_rotated

OPGATE_CPU_KERNEL(RoiAlignRotated, opgate::ops::roi_align_rotated::Cpu)

#include "resampler.h"

#include <soxr.h>

#include <new>

#include "audio/resampling.h"

namespace opgate::ops::audio_preprocess {
namespace {

std::int64_t resampled(std::int64_t samples, const audio::Rates& rates) {
  return (samples * rates.up + rates.down - 1) / rates.down;
}

class Same final : public Resampler {
 public:
  void add(std::span<const float> samples, std::vector<float>& y) override {
    y.insert(y.end(), samples.begin(), samples.end());
  }
  void finish(std::vector<float>&) override {}
};

class ByFilter final : public Resampler {
 public:
  explicit ByFilter(audio::Filter filter) : filter_(std::move(filter)) {}

  void add(std::span<const float> samples, std::vector<float>& y) override {
    held_.insert(held_.end(), samples.begin(), samples.end());
    // Output j needs the samples before (j down + half) / up + 1.
    const auto [up, down] = filter_.rates;
    const std::int64_t steps = (begin_ + static_cast<std::int64_t>(held_.size())) * up - filter_.half;
    compute(steps > 0 ? (steps - 1) / down + 1 : 0, y);
    const std::int64_t used = audio::Filter::first_sample(next_ * down, filter_.half, up) - begin_;
    const std::int64_t gone = std::clamp<std::int64_t>(used, 0, static_cast<std::int64_t>(held_.size()));
    held_.erase(held_.begin(), held_.begin() + gone);
    begin_ += gone;
  }

  void finish(std::vector<float>& y) override {
    compute(resampled(begin_ + static_cast<std::int64_t>(held_.size()), filter_.rates), y);
  }

 private:
  /// Computes the outputs before `end`.
  void compute(std::int64_t end, std::vector<float>& y) {
    if (end <= next_) return;
    const std::size_t made = y.size();
    y.resize(made + static_cast<std::size_t>(end - next_));
    filter_.run(held_, begin_, next_, end, y.data() + made);
    next_ = end;
  }

  audio::Filter filter_;
  std::vector<float> held_;  ///< the samples from `begin_` on
  std::int64_t begin_ = 0, next_ = 0;
};

class BySoxr final : public Resampler {
 public:
  BySoxr(std::int64_t from, std::int64_t to) : rates_(audio::Rates::of(from, to)) {
    const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
    const soxr_io_spec_t io = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
    const soxr_runtime_spec_t runtime = soxr_runtime_spec(1);
    soxr_error_t error = nullptr;
    soxr_ = soxr_create(static_cast<double>(from), static_cast<double>(to), 1, &error, &io, &quality, &runtime);
    if (!soxr_ || error) throw std::bad_alloc();
  }
  BySoxr(const BySoxr&) = delete;
  BySoxr& operator=(const BySoxr&) = delete;
  ~BySoxr() override { soxr_delete(soxr_); }

  void add(std::span<const float> samples, std::vector<float>& y) override {
    samples_ += static_cast<std::int64_t>(samples.size());
    process(samples, y);
  }

  void finish(std::vector<float>& y) override {
    process({}, y);
    // As librosa does: soxr rounds the length, and librosa rounds it up.
    y.resize(static_cast<std::size_t>(resampled(samples_, rates_)));
  }

 private:
  /// Without samples, asks for all that are left.
  void process(std::span<const float> samples, std::vector<float>& y) {
    constexpr std::size_t kAtOnce = 8192;
    const bool last = samples.empty();
    for (;;) {
      const std::size_t made = y.size();
      y.resize(made + kAtOnce);
      std::size_t used = 0, got = 0;
      const soxr_error_t error =
          soxr_process(soxr_, last ? nullptr : samples.data(), samples.size(), &used, y.data() + made, kAtOnce, &got);
      y.resize(made + got);
      if (error) throw std::bad_alloc();
      samples = samples.subspan(last ? 0 : used);
      if (got < kAtOnce && samples.empty()) return;
    }
  }

  audio::Rates rates_;
  std::int64_t samples_ = 0;
  soxr_t soxr_ = nullptr;
};

}  // namespace

std::unique_ptr<Resampler> Resampler::of(const std::string& name, std::int64_t from, std::int64_t to) {
  if (from == to) return std::make_unique<Same>();
  if (name == "soxr_hq") return std::make_unique<BySoxr>(from, to);
  const audio::Rates rates = audio::Rates::of(from, to);
  if (name == "sinc_interp_hann") return std::make_unique<ByFilter>(audio::Filter::hann(rates));
  // The defaults of ResampleAudio.
  return std::make_unique<ByFilter>(audio::Filter::kaiser(rates, 10, 5));
}

}  // namespace opgate::ops::audio_preprocess

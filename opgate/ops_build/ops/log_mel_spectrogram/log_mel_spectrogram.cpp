#include "log_mel_spectrogram.h"

#include <optional>

#include "audio/row_lengths.h"
#include "audio/spectra.h"

namespace opgate::ops::log_mel_spectrogram {
namespace {

using audio::kFrames;
using audio::Spectra;

class Cpu {
 public:
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    return check_attributes(attributes, sizes);
  }

  Status prepare(const Node& node) {
    settings_ = Settings::of(node.attributes());
    window_ = window_from(node.attributes());
    bands_ = bands_from(node.attributes());
    spectra_.emplace(static_cast<std::size_t>(settings_.n_fft), settings_.power);
    return {};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const std::int64_t n = in.size("n"), t = in.size("t"), frames = out["mel"].dim(2);
    audio::RowLengths lengths;
    OPGATE_RETURN_IF_ERROR(lengths.read(in));
    lengths.write_frames(out, n, [&](std::int64_t length) { return settings_.frames(length); });
    if (out["mel"].size() == 0) return {};
    const auto* const pcm = in["pcm"].data<float>();
    auto* const mel = out["mel"].data<float>();
    const std::int64_t groups = (frames + kFrames - 1) / kFrames;
    context.parallel_for(n * groups, 1, [&](std::int64_t begin, std::int64_t end) {
      Spectra::Memory memory(*spectra_);
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t row = i / groups, first = i % groups * kFrames, length = lengths[row];
        const std::int64_t count = std::min(kFrames, frames - first);
        const std::int64_t good = std::clamp<std::int64_t>(settings_.frames(length) - first, 0, count);
        float* const to = mel + row * settings_.n_mels * frames + first;
        if (good > 0) run(pcm + row * t, length, first, good, frames, to, memory);
        for (std::int64_t m = 0; m < settings_.n_mels; ++m)
          std::fill(to + m * frames + good, to + m * frames + count, settings_.silence());
      }
    });
    return {};
  }

 private:
  /// Computes `count` frames from frame `first` on.
  void run(const float* pcm, std::int64_t t, std::int64_t first, std::int64_t count, std::int64_t frames, float* mel,
           Spectra::Memory& memory) const {
    spectra_->run([&](bool even, bool odd) { load(pcm, t, first, count, even, odd, memory); }, memory);
    const float factor = settings_.factor, least = settings_.least, added = settings_.added;
    for (const audio::Band& band : bands_.bands) {
      std::array<float, kFrames> energies = spectra_->sum(bands_, band, memory);
      // A NaN stays one, and so does infinity.
      for (float& value : energies) {
        const float held = select(value < least, least, value) + added;
        value = select(held <= 3.4e38f, factor * log_of_normal(held), held);
      }
      std::copy_n(energies.data(), count, mel);
      mel += frames;
    }
  }

  /// Loads windowed samples.
  void load(const float* pcm, std::int64_t t, std::int64_t first, std::int64_t count, bool even, bool odd,
            Spectra::Memory& memory) const {
    constexpr std::int64_t kApart = Spectra::Memory::kApart;
    const std::int64_t n_fft = settings_.n_fft;
    const float* const window = window_.data();
    const float preemphasis = settings_.preemphasis;
    for (std::int64_t f = 0; f < kFrames; ++f) {
      const std::int64_t begin = (first + f) * settings_.hop - settings_.padding;
      float* const frame = memory.frame(f);
      if (f >= count || !(f < audio::kLanes ? even : odd)) {
        for (std::int64_t i = 0; i < n_fft; ++i) frame[i * kApart] = 0;
      } else if (begin >= 1 && begin + n_fft <= t && preemphasis != 0) {
        for (std::int64_t i = 0; i < n_fft; ++i)
          frame[i * kApart] = (pcm[begin + i] - preemphasis * pcm[begin + i - 1]) * window[i];
      } else if (begin >= 0 && begin + n_fft <= t && preemphasis == 0) {
        for (std::int64_t i = 0; i < n_fft; ++i) frame[i * kApart] = pcm[begin + i] * window[i];
      } else {
        for (std::int64_t i = 0; i < n_fft; ++i) frame[i * kApart] = settings_.sample(pcm, begin + i, t) * window[i];
      }
    }
  }

  Settings settings_{};
  std::vector<float> window_;
  audio::Bands bands_;
  std::optional<Spectra> spectra_;
};

}  // namespace
}  // namespace opgate::ops::log_mel_spectrogram

OPGATE_CPU_KERNEL(LogMelSpectrogram, opgate::ops::log_mel_spectrogram::Cpu)

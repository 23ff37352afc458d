#include "kaldi_fbank.h"

#include <bit>
#include <limits>
#include <numeric>
#include <optional>

#include "audio/row_lengths.h"
#include "audio/spectra.h"
#include "kernel_toolkit/elementary.h"

namespace opgate::ops::kaldi_fbank {
namespace {

using audio::kFrames;
using audio::Spectra;

constexpr std::int64_t kMostSamples = 1 << 16;
/// The least energy whose logarithm is taken.
constexpr float kLeast = std::numeric_limits<float>::epsilon();

double mel_of_hertz(double hertz) { return 1127 * std::log(1 + hertz / 700); }

/// 0 and less count from half the sample rate down.
double highest_frequency(const Attributes& attributes) {
  const double highest = attributes.number("f_max");
  return highest > 0 ? highest : static_cast<double>(attributes.integer("sample_rate")) / 2 + highest;
}

/// Triangles on the mel scale, not on that of frequencies.
audio::Bands bands_from(const Attributes& attributes, std::int64_t n_fft) {
  const std::int64_t n_mels = attributes.integer("n_mels");
  const double low = mel_of_hertz(attributes.number("f_min")), high = mel_of_hertz(highest_frequency(attributes));
  const double step = static_cast<double>(attributes.integer("sample_rate")) / static_cast<double>(n_fft);
  const double apart = (high - low) / static_cast<double>(n_mels + 1);
  const auto bin_of_mel = [&](double mel) { return static_cast<std::int64_t>(700 * std::expm1(mel / 1127) / step); };
  audio::Bands bands;
  for (std::int64_t band = 0; band < n_mels; ++band) {
    const double left = low + apart * static_cast<double>(band);
    const std::int64_t first = bin_of_mel(left), last = bin_of_mel(left + 2 * apart) + 1;
    bands.add(first, std::min(last, n_fft / 2), [&](std::int64_t bin) {
      const double mel = mel_of_hertz(step * static_cast<double>(bin));
      return std::min(mel - left, left + 2 * apart - mel) / apart;
    });
  }
  return bands;
}

/// What the attributes say.
struct Settings {
  std::int64_t win, hop, n_fft, power;
  bool snip_edges, remove_dc, log, use_energy, raw_energy;
  float preemphasis, energy_floor;

  static Settings of(const Attributes& attributes) {
    Settings settings{};
    settings.win = attributes.integer("win_length");
    settings.hop = attributes.integer("hop_length");
    settings.n_fft = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(settings.win)));
    settings.power = attributes.integer("power");
    settings.snip_edges = attributes.integer("snip_edges") == 1;
    settings.remove_dc = attributes.boolean("remove_dc");
    settings.log = attributes.boolean("log");
    settings.use_energy = attributes.integer("use_energy") == 1;
    settings.raw_energy = attributes.boolean("raw_energy");
    settings.preemphasis = static_cast<float>(attributes.number("preemphasis"));
    settings.energy_floor = std::max(kLeast, static_cast<float>(attributes.number("energy_floor")));
    return settings;
  }

  std::int64_t frames(std::int64_t t) const {
    if (!snip_edges) return (t + hop / 2) / hop;
    return t < win ? 0 : 1 + (t - win) / hop;
  }

  std::int64_t first_sample(std::int64_t frame) const { return frame * hop + (snip_edges ? 0 : hop / 2 - win / 2); }

  /// What a band of silence has, and what is in the frames behind a row.
  float silence() const { return log ? std::log(kLeast) : 0; }
};

class Cpu {
 public:
  static Status check(const Attributes& attributes, const KnownSizes&) {
    const auto in_range = [&](const char* name, std::int64_t low, std::int64_t high) {
      return attributes.integer(name) >= low && attributes.integer(name) <= high;
    };
    if (!in_range("win_length", 2, kMostSamples))
      return attributes.refuse("win_length", "2.." + std::to_string(kMostSamples));
    if (!in_range("hop_length", 1, 1 << 30)) return attributes.refuse("hop_length", "1..2^30");
    if (!in_range("n_mels", 1, 1 << 16)) return attributes.refuse("n_mels", "1..65536");
    for (const char* const name : {"snip_edges", "use_energy"}) {
      if (!in_range(name, 0, 1)) return attributes.refuse(name, "0 or 1");
    }
    if (!in_range("power", 1, 2)) return attributes.refuse("power", "1 or 2");
    if (!in_range("sample_rate", 1, 1 << 30)) return attributes.refuse("sample_rate", "1..2^30");
    const double half = static_cast<double>(attributes.integer("sample_rate")) / 2;
    const double low = attributes.number("f_min"), high = highest_frequency(attributes);
    if (!(high > 0 && high <= half))
      return attributes.refuse("f_max", "at most " + std::to_string(half) + " Hz, of which 0 and less are added to it");
    if (!(low >= 0 && low < high)) return attributes.refuse("f_min", "0 Hz or more, and less than f_max");
    const double preemphasis = attributes.number("preemphasis"), floor = attributes.number("energy_floor");
    if (!(preemphasis >= 0 && preemphasis <= 1)) return attributes.refuse("preemphasis", "0..1");
    if (!(floor >= 0 && floor <= 1e37)) return attributes.refuse("energy_floor", "0..1e37");
    return {};
  }

  Status prepare(const Node& node) {
    const Attributes& attributes = node.attributes();
    settings_ = Settings::of(attributes);
    const std::string& name = attributes.text("window");
    const std::vector<double> window = audio::window_of(name == "hanning" ? "hann" : name, settings_.win, false);
    window_.assign(window.begin(), window.end());
    bands_ = bands_from(attributes, settings_.n_fft);
    spectra_.emplace(static_cast<std::size_t>(settings_.n_fft), settings_.power);
    return {};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const std::int64_t n = in.size("n"), t = in.size("t"), frames = out["fbank"].dim(1), width = out["fbank"].dim(2);
    audio::RowLengths lengths;
    OPGATE_RETURN_IF_ERROR(lengths.read(in));
    lengths.write_frames(out, n, [&](std::int64_t length) { return settings_.frames(length); });
    if (out["fbank"].size() == 0) return {};
    const auto* const pcm = in["pcm"].data<float>();
    auto* const fbank = out["fbank"].data<float>();
    const std::int64_t groups = (frames + kFrames - 1) / kFrames;
    context.parallel_for(n * groups, 1, [&](std::int64_t begin, std::int64_t end) {
      Spectra::Memory memory(*spectra_);
      std::vector<float> frame(static_cast<std::size_t>(settings_.win));
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t row = i / groups, first = i % groups * kFrames;
        const std::int64_t count = std::min(kFrames, frames - first);
        const std::int64_t good = std::clamp<std::int64_t>(settings_.frames(lengths[row]) - first, 0, count);
        float* const to = fbank + (row * frames + first) * width;
        const std::span<const float> sound(pcm + row * t, static_cast<std::size_t>(lengths[row]));
        if (good > 0) run(sound, first, good, width, to, frame, memory);
        std::fill(to + good * width, to + count * width, settings_.silence());
        for (std::int64_t f = good; settings_.use_energy && f < count; ++f)
          to[f * width] = std::log(settings_.energy_floor);
      }
    });
    return {};
  }

 private:
  /// Computes `count` frames from frame `first` on.
  void run(std::span<const float> sound, std::int64_t first, std::int64_t count, std::int64_t width, float* fbank,
           std::vector<float>& frame, Spectra::Memory& memory) const {
    const auto load = [&](bool even, bool odd) {
      for (std::int64_t f = 0; f < kFrames; ++f) {
        float* const to = memory.frame(f);
        std::int64_t filled = 0;
        if (f < count && (f < audio::kLanes ? even : odd)) {
          const float energy = windowed(sound, settings_.first_sample(first + f), frame.data());
          if (settings_.use_energy) fbank[f * width] = std::log(std::max(energy, settings_.energy_floor));
          for (; filled < settings_.win; ++filled)
            to[filled * Spectra::Memory::kApart] = frame[static_cast<std::size_t>(filled)];
        }
        for (; filled < settings_.n_fft; ++filled) to[filled * Spectra::Memory::kApart] = 0;
      }
    };
    spectra_->run(load, memory);
    float* to = fbank + (settings_.use_energy ? 1 : 0);
    for (const audio::Band& band : bands_.bands) {
      std::array<float, kFrames> energies = spectra_->sum(bands_, band, memory);
      if (settings_.log) {
        // A NaN stays one, and so does infinity.
        for (float& value : energies) {
          const float held = select(value < kLeast, kLeast, value);
          value = select(held <= 3.4e38f, log_of_normal(held), held);
        }
      }
      for (std::int64_t f = 0; f < count; ++f) to[f * width] = energies[static_cast<std::size_t>(f)];
      ++to;
    }
  }

  /// Writes a windowed frame that begins at `begin`. Returns its energy, raw or after the window.
  float windowed(std::span<const float> sound, std::int64_t begin, float* frame) const {
    const std::int64_t win = settings_.win, t = static_cast<std::int64_t>(sound.size());
    if (begin >= 0 && begin + win <= t) {
      std::copy_n(sound.data() + begin, win, frame);
    } else {
      // The sound and its mirror image take turns.
      for (std::int64_t i = 0; i < win; ++i) {
        const std::int64_t turn = (begin + i) % (2 * t), place = turn < 0 ? turn + 2 * t : turn;
        frame[i] = sound[static_cast<std::size_t>(place < t ? place : 2 * t - 1 - place)];
      }
    }
    if (settings_.remove_dc) {
      const double mean = std::accumulate(frame, frame + win, 0.0) / static_cast<double>(win);
      for (std::int64_t i = 0; i < win; ++i) frame[i] -= static_cast<float>(mean);
    }
    const auto energy_of = [&] {
      return settings_.use_energy ? std::inner_product(frame, frame + win, frame, 0.0) : 0;
    };
    const double raw = energy_of();
    const float preemphasis = settings_.preemphasis;
    for (std::int64_t i = win - 1; i > 0; --i)
      frame[i] = (frame[i] - preemphasis * frame[i - 1]) * window_[static_cast<std::size_t>(i)];
    frame[0] = (frame[0] - preemphasis * frame[0]) * window_[0];
    return static_cast<float>(settings_.raw_energy ? raw : energy_of());
  }

  Settings settings_{};
  std::vector<float> window_;
  audio::Bands bands_;
  std::optional<Spectra> spectra_;
};

}  // namespace
}  // namespace opgate::ops::kaldi_fbank

OPGATE_CPU_KERNEL(KaldiFbank, opgate::ops::kaldi_fbank::Cpu)

#pragma once

#include <algorithm>
#include <numbers>
#include <string>
#include <vector>

#include "audio/spectrum.h"
#include "kernel_toolkit/elementary.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(
    LogMelSpectrogram,
    "LogMelSpectrogram(pcm: f32[n,t], length?: i32[n]; sample_rate: int=16000, n_fft: int=400, win_length: int=0, "
    "hop_length: int=160, n_mels: int=80, f_min: float=0, f_max: float=0, mel_scale: {slaney|htk}=slaney, "
    "norm: {slaney|none}=slaney, center: int=1, pad: {reflect|zero}=reflect, log: {ln|log10|db}=ln, "
    "floor: float=0.0000000001, guard: {clamp|add}=clamp, power: int=2, preemphasis: float=0, "
    "window: {hann|hamming|blackman|rectangular}=hann, periodic: int=1) "
    "-> (mel: f32[n,n_mels,max(0,1+(t+2*center*(n_fft/2)-n_fft)/hop_length)], frames??: i32[n])",
    "The logarithm of the energy of sound in bands of the mel scale, for frames that overlap.")

namespace opgate::ops::log_mel_spectrogram {

/// The largest n_fft. A frame of 2^16 samples is longer than a second of any sound.
inline constexpr std::int64_t kMostSamples = 1 << 16;

/// What the attributes say.
struct Settings {
  std::int64_t n_fft, hop, n_mels, padding;  ///< `padding` samples before the first one and after the last one
  bool reflect;
  std::int64_t power;
  float preemphasis;
  float factor, least, added;  ///< the result is factor * ln(max(energy, least) + added)

  static Settings of(const Attributes& attributes) {
    Settings settings{};
    settings.n_fft = attributes.integer("n_fft");
    settings.hop = attributes.integer("hop_length");
    settings.n_mels = attributes.integer("n_mels");
    settings.padding = attributes.integer("center") * (settings.n_fft / 2);
    settings.reflect = attributes.text("pad") == "reflect";
    const std::string& log = attributes.text("log");
    const double per_decade = std::numbers::log10e * (log == "db" ? 10 : 1);
    settings.factor = static_cast<float>(log == "ln" ? 1.0 : per_decade);
    const auto floor = static_cast<float>(attributes.number("floor"));
    const bool add = attributes.text("guard") == "add";
    settings.least = add ? 0 : floor;
    settings.added = add ? floor : 0;
    settings.power = attributes.integer("power");
    settings.preemphasis = static_cast<float>(attributes.number("preemphasis"));
    return settings;
  }

  /// The frames of a row of `t` samples: none if it is too short to be reflected.
  OPGATE_HOST_DEVICE std::int64_t frames(std::int64_t t) const {
    const std::int64_t samples = t + 2 * padding - n_fft;
    return samples < 0 || (reflect && t <= padding) ? 0 : 1 + samples / hop;
  }

  /// The sample at `index` of a row of `t`, after the preemphasis. The index may lie before the row or behind it.
  OPGATE_HOST_DEVICE float sample(const float* row, std::int64_t index, std::int64_t t) const {
    if (index < 0 || index >= t) {
      if (!reflect) return 0;
      index = index < 0 ? -index : 2 * (t - 1) - index;
    }
    return index > 0 && preemphasis != 0 ? row[index] - preemphasis * row[index - 1] : row[index];
  }

  /// The result for an energy, on CUDA.
  OPGATE_HOST_DEVICE float logarithm(float energy) const {
    return factor * logf((energy < least ? least : energy) + added);
  }

  /// What silence gives, and what is in the frames behind a row.
  float silence() const { return logarithm(0); }
};

inline std::int64_t window_length(const Attributes& attributes) {
  const std::int64_t length = attributes.integer("win_length");
  return length ? length : attributes.integer("n_fft");
}

inline double highest_frequency(const Attributes& attributes) {
  const double highest = attributes.number("f_max");
  return highest != 0 ? highest : static_cast<double>(attributes.integer("sample_rate")) / 2;
}

/// Refuses attributes and static sizes for which nothing can be computed.
inline Status check_attributes(const Attributes& attributes, const KnownSizes& sizes) {
  const std::int64_t n_fft = attributes.integer("n_fft");
  const auto in_range = [&](const char* name, std::int64_t low, std::int64_t high) {
    return attributes.integer(name) >= low && attributes.integer(name) <= high;
  };
  if (!in_range("n_fft", 2, kMostSamples)) return attributes.refuse("n_fft", "2.." + std::to_string(kMostSamples));
  if (!in_range("win_length", 0, n_fft)) return attributes.refuse("win_length", "0.." + std::to_string(n_fft));
  if (!in_range("hop_length", 1, 1 << 30)) return attributes.refuse("hop_length", "1..2^30");
  if (!in_range("n_mels", 1, 1 << 16)) return attributes.refuse("n_mels", "1..65536");
  if (!in_range("center", 0, 1)) return attributes.refuse("center", "0 or 1");
  if (!in_range("sample_rate", 1, 1 << 30)) return attributes.refuse("sample_rate", "1..2^30");
  const double half = static_cast<double>(attributes.integer("sample_rate")) / 2;
  const double low = attributes.number("f_min"), high = highest_frequency(attributes);
  if (!(high > 0 && high <= half)) return attributes.refuse("f_max", "0.." + std::to_string(half) + " Hz");
  if (!(low >= 0 && low < high)) return attributes.refuse("f_min", "0 Hz or more, and less than f_max");
  const double floor = attributes.number("floor");
  // The attribute has single precision, in which 1e-37 is less than in f64.
  if (!(floor >= 1e-37f && floor <= 1e37f)) return attributes.refuse("floor", "1e-37..1e37");
  if (!in_range("power", 1, 2)) return attributes.refuse("power", "1 or 2");
  if (!in_range("periodic", 0, 1)) return attributes.refuse("periodic", "0 or 1");
  const double preemphasis = attributes.number("preemphasis");
  if (!(preemphasis >= 0 && preemphasis <= 1)) return attributes.refuse("preemphasis", "0..1");
  const std::optional<std::int64_t> t = sizes["t"];
  if (t && attributes.integer("center") && attributes.text("pad") == "reflect" && *t <= n_fft / 2) {
    return Status::invalid("input 'pcm': expected more than " + std::to_string(n_fft / 2) +
                           " samples, because the padding repeats so many backwards, got " + std::to_string(*t));
  }
  return {};
}

/// The window of the attributes, in the middle of n_fft numbers.
inline std::vector<float> window_from(const Attributes& attributes) {
  const std::int64_t n_fft = attributes.integer("n_fft"), length = window_length(attributes);
  std::vector<float> window(static_cast<std::size_t>(n_fft));
  const std::vector<double> numbers =
      audio::window_of(attributes.text("window"), length, attributes.integer("periodic") == 1);
  std::copy(numbers.begin(), numbers.end(), window.begin() + (n_fft - length) / 2);
  return window;
}

/// The triangular bands of the attributes.
inline audio::Bands bands_from(const Attributes& attributes) {
  const bool htk = attributes.text("mel_scale") == "htk", slaney = attributes.text("norm") == "slaney";
  const std::int64_t n_fft = attributes.integer("n_fft"), n_mels = attributes.integer("n_mels");
  const double low = audio::mel_of_hertz(attributes.number("f_min"), htk);
  const double high = audio::mel_of_hertz(highest_frequency(attributes), htk);
  const auto edge = [&](std::int64_t i) {
    return audio::hertz_of_mel(low + (high - low) * static_cast<double>(i) / static_cast<double>(n_mels + 1), htk);
  };
  const double step = static_cast<double>(attributes.integer("sample_rate")) / static_cast<double>(n_fft);
  audio::Bands bands;
  for (std::int64_t band = 0; band < n_mels; ++band) {
    const double left = edge(band), middle = edge(band + 1), right = edge(band + 2);
    const double scale = slaney ? 2 / (right - left) : 1;
    const auto first = std::max<std::int64_t>(static_cast<std::int64_t>(left / step) - 1, 0);
    const auto last = std::min<std::int64_t>(static_cast<std::int64_t>(right / step) + 1, n_fft / 2);
    bands.add(first, last, [&](std::int64_t bin) {
      const double hertz = step * static_cast<double>(bin);
      return scale * std::min((hertz - left) / (middle - left), (right - hertz) / (right - middle));
    });
  }
  return bands;
}

}  // namespace opgate::ops::log_mel_spectrogram

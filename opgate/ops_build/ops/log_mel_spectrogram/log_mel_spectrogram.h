#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "kernel_toolkit/elementary.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(LogMelSpectrogram,
          "LogMelSpectrogram(pcm: f32[n,t]; sample_rate: int=16000, n_fft: int=400, win_length: int=0, "
          "hop_length: int=160, n_mels: int=80, f_min: float=0, f_max: float=0, mel_scale: {slaney|htk}=slaney, "
          "norm: {slaney|none}=slaney, center: int=1, pad: {reflect|zero}=reflect, log: {ln|log10|db}=ln, "
          "floor: float=0.0000000001) -> (mel: f32[n,n_mels,max(0,1+(t+2*center*(n_fft/2)-n_fft)/hop_length)])",
          "The logarithm of the energy of sound in bands of the mel scale, for frames that overlap.")

namespace opgate::ops::log_mel_spectrogram {

/// The largest n_fft. A frame of 2^16 samples is longer than a second of any sound.
inline constexpr std::int64_t kMostSamples = 1 << 16;

/// What the attributes say.
struct Settings {
  std::int64_t n_fft, hop, n_mels, padding;  ///< `padding` samples before the first one and after the last one
  bool reflect;
  float factor, floor;  ///< the result is factor * ln(max(energy, floor))

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
    settings.floor = static_cast<float>(attributes.number("floor"));
    return settings;
  }

  /// The sample of a row of `t` that stands at `index`, which may be negative; -1 for a zero.
  OPGATE_HOST_DEVICE std::int64_t sample(std::int64_t index, std::int64_t t) const {
    if (index >= 0 && index < t) return index;
    if (!reflect) return -1;
    return index < 0 ? -index : 2 * (t - 1) - index;
  }
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
  const std::optional<std::int64_t> t = sizes["t"];
  if (t && attributes.integer("center") && attributes.text("pad") == "reflect" && *t <= n_fft / 2) {
    return Status::invalid("input 'pcm': expected more than " + std::to_string(n_fft / 2) +
                           " samples, because the padding repeats so many backwards, got " + std::to_string(*t));
  }
  return {};
}

/// The periodic Hann window of the attributes, in the middle of n_fft numbers.
inline std::vector<float> hann_window(const Attributes& attributes) {
  const std::int64_t n_fft = attributes.integer("n_fft"), length = window_length(attributes);
  std::vector<float> window(static_cast<std::size_t>(n_fft));
  const std::int64_t first = (n_fft - length) / 2;
  for (std::int64_t i = 0; i < length; ++i) {
    const double phase = 2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(length);
    window[static_cast<std::size_t>(first + i)] = static_cast<float>(0.5 - 0.5 * std::cos(phase));
  }
  return window;
}

/// The scale of S. Davis, P. Mermelstein (HTK): 2595 log10(1 + f / 700). M. Slaney's (Auditory Toolbox): linear up to
/// 1000 Hz, 15 mels, and 27 mels for each factor of 6.4 above.
inline double mel_of_hertz(double hertz, bool htk) {
  if (htk) return 2595 * std::log10(1 + hertz / 700);
  return hertz < 1000 ? hertz * 3 / 200 : 15 + 27 * std::log(hertz / 1000) / std::log(6.4);
}

inline double hertz_of_mel(double mel, bool htk) {
  if (htk) return 700 * (std::pow(10.0, mel / 2595) - 1);
  return mel < 15 ? mel * 200 / 3 : 1000 * std::exp((mel - 15) / 27 * std::log(6.4));
}

/// A root of unity.
struct Root {
  float re, im;
};

/// exp(-2 pi j i / length) for i in [0, length).
inline std::vector<Root> roots_of_unity(std::size_t length) {
  std::vector<Root> roots(length);
  for (std::size_t i = 0; i < length; ++i) {
    const double phase = -2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(length);
    roots[i] = {static_cast<float>(std::cos(phase)), static_cast<float>(std::sin(phase))};
  }
  return roots;
}

/// The bins that a band adds up: those from `first` on, with the weights from `weights` on.
struct Band {
  std::int32_t first, count, weights;
};

/// The triangular bands, without the weights that are 0.
struct Bands {
  std::vector<Band> bands;
  std::vector<float> weights;

  static Bands of(const Attributes& attributes) {
    const bool htk = attributes.text("mel_scale") == "htk", slaney = attributes.text("norm") == "slaney";
    const std::int64_t n_fft = attributes.integer("n_fft"), n_mels = attributes.integer("n_mels");
    const double low = mel_of_hertz(attributes.number("f_min"), htk);
    const double high = mel_of_hertz(highest_frequency(attributes), htk);
    const auto edge = [&](std::int64_t i) {
      return hertz_of_mel(low + (high - low) * static_cast<double>(i) / static_cast<double>(n_mels + 1), htk);
    };
    const double step = static_cast<double>(attributes.integer("sample_rate")) / static_cast<double>(n_fft);
    Bands found;
    for (std::int64_t band = 0; band < n_mels; ++band) {
      const double left = edge(band), middle = edge(band + 1), right = edge(band + 2);
      const double scale = slaney ? 2 / (right - left) : 1;
      Band all{0, 0, static_cast<std::int32_t>(found.weights.size())};
      const auto first = std::max<std::int64_t>(static_cast<std::int64_t>(left / step) - 1, 0);
      const auto last = std::min<std::int64_t>(static_cast<std::int64_t>(right / step) + 1, n_fft / 2);
      for (std::int64_t bin = first; bin <= last; ++bin) {
        const double hertz = step * static_cast<double>(bin);
        const double weight = scale * std::min((hertz - left) / (middle - left), (right - hertz) / (right - middle));
        if (!(weight > 0)) continue;
        if (all.count == 0) all.first = static_cast<std::int32_t>(bin);
        ++all.count;
        found.weights.push_back(static_cast<float>(weight));
      }
      found.bands.push_back(all);
    }
    return found;
  }
};

}  // namespace opgate::ops::log_mel_spectrogram

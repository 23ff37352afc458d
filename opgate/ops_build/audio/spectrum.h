// What the spectra of sounds are made with, on every device: windows, roots of unity and the bands of the mel scale.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

namespace opgate::audio {

/// A window of `length` numbers. `name` is hann, hamming, blackman, povey (Kaldi's, hann to the power of 0.85) or
/// rectangular. A periodic window lacks the last number of a symmetric one that is longer by 1.
inline std::vector<double> window_of(const std::string& name, std::int64_t length, bool periodic) {
  std::vector<double> window(static_cast<std::size_t>(length), 1.0);
  const std::int64_t period = periodic ? length : length - 1;
  if (name == "rectangular" || period == 0) return window;
  for (std::int64_t i = 0; i < length; ++i) {
    const double phase = 2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(period);
    const double hann = 0.5 - 0.5 * std::cos(phase);
    double& value = window[static_cast<std::size_t>(i)];
    value = hann;
    if (name == "povey") value = std::pow(hann, 0.85);
    if (name == "hamming") value = 0.54 - 0.46 * std::cos(phase);
    if (name == "blackman") value = hann - 0.08 * (1 - std::cos(2 * phase));
  }
  return window;
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

/// The bins that a band adds up: those from `first` on, with the weights from `weights` on.
struct Band {
  std::int32_t first, count, weights;
};

/// The bands, without the weights that are 0.
struct Bands {
  std::vector<Band> bands;
  std::vector<float> weights;

  /// Adds a band of the bins `first`, ..., `last`, or of those of them whose weight, weight_of(bin), is positive.
  template <typename Weight>
  void add(std::int64_t first, std::int64_t last, const Weight& weight_of) {
    Band band{0, 0, static_cast<std::int32_t>(weights.size())};
    for (std::int64_t bin = first; bin <= last; ++bin) {
      const double weight = weight_of(bin);
      if (!(weight > 0)) continue;
      if (band.count == 0) band.first = static_cast<std::int32_t>(bin);
      ++band.count;
      weights.push_back(static_cast<float>(weight));
    }
    bands.push_back(band);
  }
};

}  // namespace opgate::audio

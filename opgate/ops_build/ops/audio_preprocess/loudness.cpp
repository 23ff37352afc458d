#include "loudness.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

namespace opgate::ops::audio_preprocess {
namespace {

/// A filter of the second order.
struct Biquad {
  double b0, b1, b2, a1, a2, held1 = 0, held2 = 0;

  double operator()(double x) {
    const double y = b0 * x + held1;
    held1 = b1 * x - a1 * y + held2;
    held2 = b2 * x - a2 * y;
    return y;
  }
};

/// The filters of the K weighting, whose coefficients BS.1770 states for 48000 Hz, at any rate: B. De Man, "Evaluation
/// of Implementations of the EBU R128 Loudness Measurement", 2018.
Biquad head(double rate) {
  const double k = std::tan(std::numbers::pi * 1681.9744509555319 / rate), q = 0.7071752369554193;
  const double high = std::pow(10, 3.99984385397 / 20), band = std::pow(high, 0.499666774155);
  const double a0 = 1 + k / q + k * k;
  return {(high + band * k / q + k * k) / a0, 2 * (k * k - high) / a0, (high - band * k / q + k * k) / a0,
          2 * (k * k - 1) / a0, (1 - k / q + k * k) / a0};
}

Biquad low_cut(double rate) {
  const double k = std::tan(std::numbers::pi * 38.13547087613982 / rate), q = 0.5003270373253953;
  const double a0 = 1 + k / q + k * k;
  return {1, -2, 1, 2 * (k * k - 1) / a0, (1 - k / q + k * k) / a0};
}

double in_lufs(double energy) { return -0.691 + 10 * std::log10(energy); }

/// The mean of the energies that are louder than a gate, 0 if none is.
double gated(const std::vector<double>& energies, double gate) {
  double sum = 0;
  std::int64_t count = 0;
  for (const double energy : energies) {
    if (energy <= 0 || in_lufs(energy) <= gate) continue;
    sum += energy;
    ++count;
  }
  return count ? sum / static_cast<double>(count) : 0;
}

}  // namespace

std::optional<double> loudness_of(std::span<const float> samples, double rate) {
  // sums[i] is the energy before sample i.
  std::vector<double> sums(samples.size() + 1);
  Biquad first = head(rate), second = low_cut(rate);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double weighted = second(first(static_cast<double>(samples[i])));
    sums[i + 1] = sums[i] + weighted * weighted;
  }
  const auto place = [&](double steps) { return static_cast<std::size_t>(steps * 0.1 * rate); };
  std::vector<double> energies;
  for (double block = 0; place(block + 4) <= samples.size(); ++block) {
    const double energy = sums[place(block + 4)] - sums[place(block)];
    energies.push_back(energy / (0.4 * rate));
  }
  if (energies.empty() && !samples.empty()) energies.push_back(sums.back() / static_cast<double>(samples.size()));
  constexpr double kSilence = -70;
  const double loud = gated(energies, kSilence);
  if (loud <= 0) return std::nullopt;
  const double energy = gated(energies, std::max(kSilence, in_lufs(loud) - 10));
  return energy > 0 ? std::optional(in_lufs(energy)) : std::nullopt;
}

}  // namespace opgate::ops::audio_preprocess

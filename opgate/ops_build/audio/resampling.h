// Resampling by a filter whose weights are tabulated for each phase, shared by ResampleAudio and AudioPreprocess.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <numeric>
#include <span>
#include <vector>

#include "signature/dtype.h"

namespace opgate::audio {

/// Two sample rates without their common factor.
struct Rates {
  std::int64_t up, down;

  static Rates of(std::int64_t from, std::int64_t to) {
    const std::int64_t common = std::gcd(from, to);
    return {to / common, from / common};
  }
};

/// The modified Bessel function of the first kind and order 0, by its series.
inline double bessel(double x) {
  double term = 1, sum = 1;
  for (int k = 1; term > 1e-17 * sum; ++k) {
    term *= (x / 2 / k) * (x / 2 / k);
    sum += term;
  }
  return sum;
}

inline double sinc(double x) { return x == 0 ? 1 : std::sin(std::numbers::pi * x) / (std::numbers::pi * x); }

/// The weights of a symmetric low-pass filter, sorted by phase: output j has the phase j down modulo up, and its
/// weights begin at phase * stride. Distances are in steps of 1 / (up * the old rate) seconds.
struct Filter {
  /// So many weights are multiplied side by side. What is behind the weights of a phase is 0.
  static constexpr std::int64_t kMultiple = 16;

  Rates rates;
  std::int64_t half;    ///< how many steps the filter reaches to each side
  std::int64_t stride;  ///< from the weights of a phase to those of the next one
  std::vector<float> weights;

  static std::int64_t stride_of(const Rates& rates, std::int64_t half) {
    const std::int64_t taps = 2 * half / rates.up + 1;  // the most samples that an output depends on
    return (taps + kMultiple - 1) / kMultiple * kMultiple;
  }

  /// scipy.signal.resample_poly's filter: a sinc with `zeros` zero crossings on each side and a Kaiser window.
  static std::int64_t kaiser_half(const Rates& rates, std::int64_t zeros) {
    return zeros * std::max(rates.up, rates.down);
  }
  static Filter kaiser(const Rates& rates, std::int64_t zeros, double beta) {
    const std::int64_t half = kaiser_half(rates, zeros);
    const double cutoff = 1.0 / static_cast<double>(std::max(rates.up, rates.down)), highest = bessel(beta);
    std::vector<double> response(static_cast<std::size_t>(half + 1));
    double sum = 0;
    for (std::int64_t m = 0; m <= half; ++m) {
      const double at = static_cast<double>(m) / static_cast<double>(half);
      const double window = bessel(beta * std::sqrt(std::max(0.0, 1 - at * at))) / highest;
      const double value = sinc(cutoff * static_cast<double>(m)) * window;
      response[static_cast<std::size_t>(m)] = value;
      sum += m == 0 ? value : 2 * value;
    }
    return Filter(rates, response, sum / static_cast<double>(rates.up));
  }

  /// torchaudio.functional.resample's filter with its defaults: a sinc with 6 zero crossings, cut off at 0.99 of the
  /// lower rate, and a Hann window.
  static Filter hann(const Rates& rates) {
    constexpr double kZeros = 6, kRolloff = 0.99;
    const double step = kRolloff / static_cast<double>(std::max(rates.up, rates.down));
    std::vector<double> response(static_cast<std::size_t>(kZeros / step) + 1);
    for (std::size_t m = 0; m < response.size(); ++m) {
      const double t = step * static_cast<double>(m), window = std::cos(t * std::numbers::pi / kZeros / 2);
      response[m] = sinc(t) * window * window;
    }
    return Filter(rates, response, 1 / (step * static_cast<double>(rates.up)));
  }

  /// The first sample that reaches an output at `position`, in steps. It may lie before the first one of a row.
  OPGATE_HOST_DEVICE static std::int64_t first_sample(std::int64_t position, std::int64_t half, std::int64_t up) {
    const std::int64_t step = position - half;  // rounded up to a multiple of `up`
    return step >= 0 ? (step + up - 1) / up : -(-step / up);
  }

  /// The sample behind the last one that reaches it.
  OPGATE_HOST_DEVICE static std::int64_t end_sample(std::int64_t position, std::int64_t half, std::int64_t up) {
    return (position + half) / up + 1;
  }

  /// Writes the outputs `first`, ..., `last - 1`. `x` are the samples from the one numbered `begin` on; before and
  /// behind them is silence.
  void run(std::span<const float> x, std::int64_t begin, std::int64_t first, std::int64_t last, float* y) const {
    const auto count = static_cast<std::int64_t>(x.size());
    for (std::int64_t j = first; j < last; ++j, ++y) {
      const std::int64_t position = j * rates.down;
      const std::int64_t sample = first_sample(position, half, rates.up) - begin;
      const float* const of_phase = weights.data() + position % rates.up * stride;
      if (sample >= 0 && sample + stride <= count) [[likely]] {
        *y = dot(x.data() + sample, of_phase, stride);
        // The last weights are 0, and what they are multiplied with counts only if it is NaN or infinite.
        if (*y == *y) [[likely]]
          continue;
      }
      const std::int64_t end = std::min(count, end_sample(position, half, rates.up) - begin);
      const std::int64_t low = std::max<std::int64_t>(0, -sample), high = end - sample;
      *y = low < high ? dot(x.data() + sample + low, of_phase + low, high - low) : 0.0f;
    }
  }

 private:
  /// `response` is the filter from its middle to an end, which is that to the other end as well, times `sum`.
  Filter(const Rates& rates, const std::vector<double>& response, double sum)
      : rates(rates), half(static_cast<std::int64_t>(response.size()) - 1), stride(stride_of(rates, half)) {
    weights.assign(static_cast<std::size_t>(rates.up * stride), 0.0f);
    for (std::int64_t phase = 0; phase < rates.up; ++phase) {
      // Sample first + k of the phase lies (phase - (first + k) up) steps before the output.
      const std::int64_t first = first_sample(phase, half, rates.up), end = end_sample(phase, half, rates.up);
      for (std::int64_t k = 0; k < end - first; ++k) {
        const std::int64_t step = phase - (first + k) * rates.up;
        weights[static_cast<std::size_t>(phase * stride + k)] =
            static_cast<float>(response[static_cast<std::size_t>(step < 0 ? -step : step)] / sum);
      }
    }
  }

  /// Has several partial sums, because they vectorize and round less than one sum.
  static float dot(const float* a, const float* b, std::int64_t count) {
    constexpr std::int64_t kLanes = kMultiple;
    float lanes[kLanes] = {};
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
    }
    float rest = 0;
    for (; i < count; ++i) rest += a[i] * b[i];
    for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (std::int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return lanes[0] + rest;
  }
};

}  // namespace opgate::audio

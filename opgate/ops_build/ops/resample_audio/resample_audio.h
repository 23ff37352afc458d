#pragma once

#include <cmath>
#include <numbers>
#include <numeric>
#include <string>
#include <vector>

#include "kernel_toolkit/op.h"

OPGATE_OP(ResampleAudio,
          "ResampleAudio(x: f32[n,t]; from_rate: int, to_rate: int, zeros: int=10, beta: float=5) "
          "-> (y: f32[n,ceildiv(t*to_rate,from_rate)])",
          "Sound at another sample rate: a low-pass filter with a Kaiser window, computed where samples are wanted.")

namespace opgate::ops::resample_audio {

inline constexpr std::int64_t kMostRate = 1 << 24;
inline constexpr std::int64_t kMostZeros = 1 << 10;
/// The most weights of a filter, with those that are 0: 256 MiB.
inline constexpr std::int64_t kMostWeights = std::int64_t{1} << 26;

/// So many weights are multiplied side by side. What is behind the weights of a phase is 0.
inline constexpr std::int64_t kMultiple = 16;

/// The two rates without their common factor.
struct Rates {
  std::int64_t up, down;

  static Rates of(const Attributes& attributes) {
    const std::int64_t from = attributes.integer("from_rate"), to = attributes.integer("to_rate");
    const std::int64_t common = std::gcd(from, to);
    return {to / common, from / common};
  }

  /// How far the filter reaches, in steps of 1 / (up * from_rate) seconds.
  std::int64_t half(std::int64_t zeros) const { return zeros * std::max(up, down); }

  /// The most samples that an output depends on.
  std::int64_t taps(std::int64_t zeros) const { return 2 * half(zeros) / up + 1; }

  /// The same, rounded up to a multiple of kMultiple: from the weights of a phase to those of the next one.
  std::int64_t stride(std::int64_t zeros) const { return (taps(zeros) + kMultiple - 1) / kMultiple * kMultiple; }
};

inline Status check_attributes(const Attributes& attributes) {
  for (const char* const rate : {"from_rate", "to_rate"}) {
    if (attributes.integer(rate) < 1 || attributes.integer(rate) > kMostRate)
      return attributes.refuse(rate, "1.." + std::to_string(kMostRate));
  }
  const std::int64_t zeros = attributes.integer("zeros");
  if (zeros < 1 || zeros > kMostZeros) return attributes.refuse("zeros", "1.." + std::to_string(kMostZeros));
  const double beta = attributes.number("beta");
  if (!(beta >= 0 && beta <= 100)) return attributes.refuse("beta", "0..100");
  const Rates rates = Rates::of(attributes);
  if (rates.up * rates.stride(zeros) <= kMostWeights) return {};
  return Status::invalid("attributes 'from_rate' and 'to_rate': " + std::to_string(attributes.integer("from_rate")) +
                         " and " + std::to_string(attributes.integer("to_rate")) + " have no common factor, and " +
                         std::to_string(zeros) + " zeros on each side need a filter of more than " +
                         std::to_string(kMostWeights) + " weights");
}

/// The modified Bessel function of the first kind and order 0, by its series.
inline double bessel(double x) {
  double term = 1, sum = 1;
  for (int k = 1; term > 1e-17 * sum; ++k) {
    term *= (x / 2 / k) * (x / 2 / k);
    sum += term;
  }
  return sum;
}

/// The filter, sorted by phase: output j has the phase j down modulo up. Its weights begin at phase * stride.
struct Filter {
  std::int64_t stride;
  std::vector<float> weights;

  static Filter of(const Attributes& attributes) {
    const std::int64_t zeros = attributes.integer("zeros");
    const Rates rates = Rates::of(attributes);
    const std::int64_t half = rates.half(zeros), taps = rates.taps(zeros);
    double sum = 0;
    const std::vector<double> response = response_of(rates, half, attributes.number("beta"), sum);
    Filter filter{rates.stride(zeros), {}};
    filter.weights.assign(static_cast<std::size_t>(rates.up * filter.stride), 0.0f);
    for (std::int64_t phase = 0; phase < rates.up; ++phase) {
      // Sample first + k of the phase lies (phase - (first + k) up) steps before the output.
      for (std::int64_t k = 0; k < taps; ++k) {
        const std::int64_t step = phase - (first_sample(phase, half, rates.up) + k) * rates.up;
        if (step < -half || step > half) continue;
        filter.weights[static_cast<std::size_t>(phase * filter.stride + k)] = static_cast<float>(
            response[static_cast<std::size_t>(step < 0 ? -step : step)] / sum * static_cast<double>(rates.up));
      }
    }
    return filter;
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

 private:
  /// The filter from its middle to an end, which is that to the other end as well, and the sum over all of it.
  static std::vector<double> response_of(const Rates& rates, std::int64_t half, double beta, double& sum) {
    const double cutoff = 1.0 / static_cast<double>(std::max(rates.up, rates.down)), highest = bessel(beta);
    std::vector<double> response(static_cast<std::size_t>(half + 1));
    for (std::int64_t m = 0; m <= half; ++m) {
      const double at = static_cast<double>(m) / static_cast<double>(half);
      const double phase = std::numbers::pi * cutoff * static_cast<double>(m);
      const double window = bessel(beta * std::sqrt(std::max(0.0, 1 - at * at))) / highest;
      const double value = (m == 0 ? 1 : std::sin(phase) / phase) * window;
      response[static_cast<std::size_t>(m)] = value;
      sum += m == 0 ? value : 2 * value;
    }
    return response;
  }
};

}  // namespace opgate::ops::resample_audio

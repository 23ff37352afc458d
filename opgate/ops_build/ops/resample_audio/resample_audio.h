#pragma once

#include <string>

#include "audio/resampling.h"
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

inline audio::Rates rates_of(const Attributes& attributes) {
  return audio::Rates::of(attributes.integer("from_rate"), attributes.integer("to_rate"));
}

inline Status check_attributes(const Attributes& attributes) {
  for (const char* const rate : {"from_rate", "to_rate"}) {
    if (attributes.integer(rate) < 1 || attributes.integer(rate) > kMostRate)
      return attributes.refuse(rate, "1.." + std::to_string(kMostRate));
  }
  const std::int64_t zeros = attributes.integer("zeros");
  if (zeros < 1 || zeros > kMostZeros) return attributes.refuse("zeros", "1.." + std::to_string(kMostZeros));
  const double beta = attributes.number("beta");
  if (!(beta >= 0 && beta <= 100)) return attributes.refuse("beta", "0..100");
  const audio::Rates rates = rates_of(attributes);
  const std::int64_t stride = audio::Filter::stride_of(rates, audio::Filter::kaiser_half(rates, zeros));
  if (rates.up * stride <= kMostWeights) return {};
  return Status::invalid("attributes 'from_rate' and 'to_rate': " + std::to_string(attributes.integer("from_rate")) +
                         " and " + std::to_string(attributes.integer("to_rate")) + " have no common factor, and " +
                         std::to_string(zeros) + " zeros on each side need a filter of more than " +
                         std::to_string(kMostWeights) + " weights");
}

inline audio::Filter filter_of(const Attributes& attributes) {
  return audio::Filter::kaiser(rates_of(attributes), attributes.integer("zeros"), attributes.number("beta"));
}

}  // namespace opgate::ops::resample_audio

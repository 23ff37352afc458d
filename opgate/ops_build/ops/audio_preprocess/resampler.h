// Brings a sound that comes in parts to another sample rate.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace opgate::ops::audio_preprocess {

class Resampler {
 public:
  virtual ~Resampler() = default;

  /// Appends what the next samples determine to `y`.
  virtual void add(std::span<const float> samples, std::vector<float>& y) = 0;
  /// Appends what is left. `y` then has ceil(samples * to / from) samples.
  virtual void finish(std::vector<float>& y) = 0;

  /// `name` is a value of the attribute 'resampler'.
  static std::unique_ptr<Resampler> of(const std::string& name, std::int64_t from, std::int64_t to);
};

}  // namespace opgate::ops::audio_preprocess

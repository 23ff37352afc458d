// The loudness of a sound as ITU-R BS.1770-4 and EBU R 128 define it.
#pragma once

#include <optional>
#include <span>

namespace opgate::ops::audio_preprocess {

/// Returns the integrated loudness of one channel of `rate` samples a second, in LUFS; nothing if all is silence. A
/// sound that is shorter than a block of 0.4 seconds is one block.
std::optional<double> loudness_of(std::span<const float> samples, double rate);

}  // namespace opgate::ops::audio_preprocess

// Decodes sounds from their beginning, as many samples as are asked for: WAV with code of our own, MP3 with libmpg123,
// the others with libsndfile.
//
// Any bytes give a SoundStatus. The memory that a sound takes doesn't depend on how long it is or says it is, and the
// time only on the samples that are read and on the size of the file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace opgate::audio {

using Bytes = std::span<const std::uint8_t>;

/// The statuses of DecodeAudio and AudioPreprocess.
enum class SoundStatus : std::int32_t { good, unknown_format, corrupt, unsupported, another_rate, too_long };

/// How the channels become one.
enum class Mix { mean, first };

/// A sound whose header has been read.
class Sound {
 public:
  virtual ~Sound() = default;

  std::int64_t rate() const { return rate_; }
  /// The samples of a channel as the file states them. None if it doesn't.
  std::optional<std::int64_t> length() const { return length_; }

  /// Writes the next samples, as parts of full scale. `count` is how many there were: fewer than asked for only at the
  /// end of the sound, and after an error.
  virtual SoundStatus read(Mix mix, std::span<float> samples, std::size_t& count) = 0;

 protected:
  std::int64_t rate_ = 0;
  std::optional<std::int64_t> length_;
};

/// Reads the header of a sound. Returns null unless `status` is good. `file` must outlive the sound.
std::unique_ptr<Sound> open(Bytes file, SoundStatus& status);

}  // namespace opgate::audio

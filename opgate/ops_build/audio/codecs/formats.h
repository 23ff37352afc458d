// What is behind open(): a function for each kind of file.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "audio/codecs/sound.h"

namespace opgate::audio {

std::unique_ptr<Sound> open_wav(Bytes file, SoundStatus& status);
std::unique_ptr<Sound> open_mp3(Bytes file, SoundStatus& status);
/// Opens a file with libsndfile, if it has this type and a subtype of which many programs make files.
std::unique_ptr<Sound> open_with_sndfile(Bytes file, int type, SoundStatus& status);

/// Whether a file is a whole stream of Vorbis or Opus whose headers ask for memory of a common size.
SoundStatus check_ogg(Bytes file);

/// A file in memory that a library reads with functions like those of C.
struct MemoryFile {
  Bytes bytes;
  std::int64_t position = 0;

  std::int64_t size() const { return static_cast<std::int64_t>(bytes.size()); }

  /// Returns the new position, or -1 if it would lie outside of the file.
  std::int64_t seek(std::int64_t offset, int whence) {
    const std::int64_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? position : size();
    // Files state offsets, and the sum may be beyond every number.
    if (offset < -from || offset > size() - from) return -1;
    return position = from + offset;
  }

  /// Returns how many bytes there were.
  std::int64_t read(void* to, std::int64_t count) {
    count = std::clamp<std::int64_t>(count, 0, size() - position);
    if (count > 0) std::memcpy(to, bytes.data() + position, static_cast<std::size_t>(count));
    position += count;
    return count;
  }
};

/// Writes one sample for each frame. Returns whether all are finite.
inline bool mix_frames(const float* frames, std::size_t channels, Mix mix, std::span<float> samples) {
  bool finite = true;
  for (std::size_t i = 0; i < samples.size(); ++i, frames += channels) {
    double sum = static_cast<double>(frames[0]);
    if (mix == Mix::mean && channels > 1) {
      for (std::size_t channel = 1; channel < channels; ++channel) sum += static_cast<double>(frames[channel]);
      sum /= static_cast<double>(channels);
    }
    samples[i] = static_cast<float>(sum);
    finite &= std::abs(samples[i]) <= std::numeric_limits<float>::max();
  }
  return finite;
}

}  // namespace opgate::audio

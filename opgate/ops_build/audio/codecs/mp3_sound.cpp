// libsndfile reads MP3 with libmpg123 too, but lets it write warnings to stderr.
#include <mpg123.h>

#include <algorithm>
#include <new>
#include <vector>

#include "audio/codecs/formats.h"

namespace opgate::audio {
namespace {

class Mp3Sound final : public Sound {
 public:
  explicit Mp3Sound(Bytes file) : file_{file} {}
  Mp3Sound(const Mp3Sound&) = delete;
  Mp3Sound& operator=(const Mp3Sound&) = delete;
  ~Mp3Sound() override { mpg123_delete(decoder_); }

  SoundStatus open() {
    static const int initialized = mpg123_init();
    decoder_ = initialized == MPG123_OK ? mpg123_new(nullptr, nullptr) : nullptr;
    if (!decoder_) throw std::bad_alloc();
    constexpr long kFlags =
        MPG123_QUIET | MPG123_FORCE_FLOAT | MPG123_GAPLESS | MPG123_SKIP_ID3V2 | MPG123_NO_FRANKENSTEIN;
    const auto read = [](void* file, void* to, std::size_t count) -> ssize_t {
      return static_cast<MemoryFile*>(file)->read(to, static_cast<std::int64_t>(count));
    };
    const auto seek = [](void* file, off_t offset, int whence) -> off_t {
      return static_cast<MemoryFile*>(file)->seek(offset, whence);
    };
    int channels = 0, encoding = 0;
    long rate = 0;
    if (mpg123_param(decoder_, MPG123_ADD_FLAGS, kFlags, 0) != MPG123_OK ||
        mpg123_param(decoder_, MPG123_REMOVE_FLAGS, MPG123_AUTO_RESAMPLE, 0) != MPG123_OK ||
        mpg123_replace_reader_handle(decoder_, read, seek, nullptr) != MPG123_OK ||
        mpg123_open_handle(decoder_, &file_) != MPG123_OK ||
        mpg123_getformat(decoder_, &rate, &channels, &encoding) != MPG123_OK || channels < 1 || rate < 1) {
      return SoundStatus::corrupt;
    }
    if (encoding != MPG123_ENC_FLOAT_32) return SoundStatus::unsupported;
    // A file without the tag that states its length is walked through, frame by frame, but not decoded.
    off_t length = mpg123_length(decoder_);
    if (length <= 0 && mpg123_scan(decoder_) == MPG123_OK) length = mpg123_length(decoder_);
    if (length < 0) return SoundStatus::corrupt;
    rate_ = rate;
    length_ = length;
    channels_ = static_cast<std::size_t>(channels);
    frames_.resize(kAtOnce * channels_);
    return SoundStatus::good;
  }

  SoundStatus read(Mix mix, std::span<float> samples, std::size_t& count) override {
    count = 0;
    while (count < samples.size()) {
      const std::size_t wanted = std::min(samples.size() - count, kAtOnce), frame_bytes = sizeof(float) * channels_;
      std::size_t bytes = 0;
      const int error = mpg123_read(decoder_, frames_.data(), wanted * frame_bytes, &bytes);
      if (error != MPG123_OK && error != MPG123_DONE) return SoundStatus::corrupt;
      const std::span<float> part = samples.subspan(count, bytes / frame_bytes);
      if (!mix_frames(frames_.data(), channels_, mix, part)) return SoundStatus::corrupt;
      count += part.size();
      read_ += static_cast<std::int64_t>(part.size());
      if (part.size() < wanted) return *length_ - read_ <= kSlack ? SoundStatus::good : SoundStatus::corrupt;
    }
    return SoundStatus::good;
  }

 private:
  static constexpr std::size_t kAtOnce = 4096;
  /// Some encoders count a frame that has no sound, and some decoders don't give the last one: two frames.
  static constexpr std::int64_t kSlack = 2 * 1152;

  MemoryFile file_;
  mpg123_handle* decoder_ = nullptr;
  std::size_t channels_ = 0;
  std::int64_t read_ = 0;
  std::vector<float> frames_;
};

}  // namespace

std::unique_ptr<Sound> open_mp3(Bytes file, SoundStatus& status) {
  auto sound = std::make_unique<Mp3Sound>(file);
  status = sound->open();
  if (status != SoundStatus::good) return nullptr;
  return sound;
}

}  // namespace opgate::audio

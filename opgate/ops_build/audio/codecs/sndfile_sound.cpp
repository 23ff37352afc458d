#include <sndfile.h>

#include <algorithm>
#include <vector>

#include "audio/codecs/formats.h"

namespace opgate::audio {
namespace {

/// Whether files of a type are read if their samples are of this subtype. libsndfile has others, which few programs
/// make.
bool allowed(int type, int subtype) {
  switch (type) {
    case SF_FORMAT_OGG: return subtype == SF_FORMAT_VORBIS || subtype == SF_FORMAT_OPUS;
    // The others of WAV have been read without libsndfile.
    case SF_FORMAT_WAV: return subtype == SF_FORMAT_MS_ADPCM || subtype == SF_FORMAT_IMA_ADPCM;
    default: break;
  }
  switch (subtype) {
    case SF_FORMAT_PCM_S8:
    case SF_FORMAT_PCM_U8:
    case SF_FORMAT_PCM_16:
    case SF_FORMAT_PCM_24:
    case SF_FORMAT_PCM_32: return true;
    case SF_FORMAT_FLOAT:
    case SF_FORMAT_DOUBLE:
    case SF_FORMAT_ALAW:
    case SF_FORMAT_ULAW: return type != SF_FORMAT_FLAC;
    default: return false;
  }
}

class SndfileSound final : public Sound {
 public:
  explicit SndfileSound(Bytes file) : file_{file} {}
  SndfileSound(const SndfileSound&) = delete;
  SndfileSound& operator=(const SndfileSound&) = delete;
  ~SndfileSound() override {
    if (decoder_) sf_close(decoder_);
  }

  SoundStatus open(int type) {
    SF_VIRTUAL_IO io{
        .get_filelen = [](void* file) -> sf_count_t { return static_cast<MemoryFile*>(file)->size(); },
        .seek = [](sf_count_t offset, int whence, void* file) -> sf_count_t {
          return static_cast<MemoryFile*>(file)->seek(offset, whence);
        },
        .read = [](void* to, sf_count_t count, void* file) -> sf_count_t {
          return static_cast<MemoryFile*>(file)->read(to, count);
        },
        .write = [](const void*, sf_count_t, void*) -> sf_count_t { return 0; },
        .tell = [](void* file) -> sf_count_t { return static_cast<MemoryFile*>(file)->position; },
    };
    SF_INFO info{};
    decoder_ = sf_open_virtual(&io, SFM_READ, &info, &file_);
    if (!decoder_) return SoundStatus::corrupt;
    if ((info.format & SF_FORMAT_TYPEMASK) != type || !allowed(type, info.format & SF_FORMAT_SUBMASK))
      return SoundStatus::unsupported;
    if (info.channels < 1 || info.samplerate < 1 || info.frames < 0) return SoundStatus::corrupt;
    const bool stated = info.frames != SF_COUNT_MAX;
    // Ogg has the length on its last page.
    if (type == SF_FORMAT_OGG && !stated) return SoundStatus::corrupt;
    channels_ = static_cast<std::size_t>(info.channels);
    rate_ = info.samplerate;
    if (stated) length_ = info.frames;
    frames_.resize(std::max<std::size_t>(1, kAtOnce / channels_) * channels_);
    return SoundStatus::good;
  }

  SoundStatus read(Mix mix, std::span<float> samples, std::size_t& count) override {
    count = 0;
    while (count < samples.size()) {
      const std::size_t wanted = std::min(samples.size() - count, frames_.size() / channels_);
      const sf_count_t got = sf_readf_float(decoder_, frames_.data(), static_cast<sf_count_t>(wanted));
      if (got < 0 || sf_error(decoder_) != SF_ERR_NO_ERROR) return SoundStatus::corrupt;
      const std::span<float> part = samples.subspan(count, static_cast<std::size_t>(got));
      if (!mix_frames(frames_.data(), channels_, mix, part)) return SoundStatus::corrupt;
      count += part.size();
      read_ += got;
      if (part.size() < wanted) return length_.value_or(read_) == read_ ? SoundStatus::good : SoundStatus::corrupt;
    }
    return SoundStatus::good;
  }

 private:
  /// The numbers that are decoded at a time.
  static constexpr std::size_t kAtOnce = 8192;

  MemoryFile file_;
  SNDFILE* decoder_ = nullptr;
  std::size_t channels_ = 0;
  std::int64_t read_ = 0;
  std::vector<float> frames_;
};

}  // namespace

std::unique_ptr<Sound> open_with_sndfile(Bytes file, int type, SoundStatus& status) {
  auto sound = std::make_unique<SndfileSound>(file);
  status = sound->open(type);
  if (status != SoundStatus::good) return nullptr;
  return sound;
}

}  // namespace opgate::audio

// Reads WAV files: RIFF chunks with samples as integers of 8 to 32 bits, floats of 32 or 64, or the logarithms of
// G.711. libsndfile reads those of ADPCM.
#include <sndfile.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "audio/codecs/formats.h"
#include "kernel_toolkit/bytes.h"

namespace opgate::audio {
namespace {

enum class Encoding { u8, i16, i24, i32, f32, f64, a_law, mu_law };

/// What the chunks of a file say. `frames` has one sample of each channel for each moment.
struct Wav {
  Encoding encoding{};
  bool adpcm = false;
  std::size_t channels = 0, sample_bytes = 0;
  std::uint32_t rate = 0;
  Bytes frames;

  std::size_t frame_bytes() const { return channels * sample_bytes; }
  std::size_t length() const { return frames.size() / frame_bytes(); }
};

/// Reads the chunk 'fmt '.
SoundStatus read_format(Bytes chunk, Wav& wav) {
  if (chunk.size() < 16) return SoundStatus::corrupt;
  std::uint16_t format = little_endian<std::uint16_t>(chunk.data());
  const auto bits = little_endian<std::uint16_t>(chunk.data() + 14);
  wav.adpcm = format == 2 || format == 0x11;  // Microsoft's and IMA's
  // WAVE_FORMAT_EXTENSIBLE: the format stands in the first two bytes of a GUID.
  if (format == 0xFFFE && chunk.size() >= 40) format = little_endian<std::uint16_t>(chunk.data() + 24);
  wav.channels = little_endian<std::uint16_t>(chunk.data() + 2);
  wav.rate = little_endian<std::uint32_t>(chunk.data() + 4);
  wav.sample_bytes = bits / 8;
  if (format == 1 && bits == 8) {
    wav.encoding = Encoding::u8;
  } else if (format == 1 && bits == 16) {
    wav.encoding = Encoding::i16;
  } else if (format == 1 && bits == 24) {
    wav.encoding = Encoding::i24;
  } else if (format == 1 && bits == 32) {
    wav.encoding = Encoding::i32;
  } else if (format == 3 && bits == 32) {
    wav.encoding = Encoding::f32;
  } else if (format == 3 && bits == 64) {
    wav.encoding = Encoding::f64;
  } else if (format == 6 && bits == 8) {
    wav.encoding = Encoding::a_law;
  } else if (format == 7 && bits == 8) {
    wav.encoding = Encoding::mu_law;
  } else {
    return SoundStatus::unsupported;
  }
  const bool fits = wav.channels != 0 && little_endian<std::uint16_t>(chunk.data() + 12) == wav.frame_bytes();
  return fits && wav.rate != 0 ? SoundStatus::good : SoundStatus::corrupt;
}

/// Finds the format and the samples. `wav` refers to the bytes afterwards.
SoundStatus find_frames(Bytes file, Wav& wav) {
  // Programs that write to a pipe don't know the size, and state one of at least this.
  constexpr std::uint32_t kUnknownSize = 0x7FFF0000;
  std::size_t position = 12;
  while (file.size() - position >= 8) {
    const bool format = has_at(file, position, "fmt "), data = has_at(file, position, "data");
    const auto stated = little_endian<std::uint32_t>(file.data() + position + 4);
    position += 8;
    const std::size_t rest = file.size() - position;
    const std::size_t size = data && stated >= kUnknownSize ? rest : stated;
    if (size > rest) return SoundStatus::corrupt;
    if (format) {
      if (const SoundStatus status = read_format(file.subspan(position, size), wav); status != SoundStatus::good)
        return status;
    } else if (data) {
      if (wav.channels == 0) return SoundStatus::corrupt;
      wav.frames = file.subspan(position, size);
      return SoundStatus::good;
    }
    position += std::min(rest, size + size % 2);
  }
  return SoundStatus::corrupt;
}

/// The sample of 16 bits that a byte of A-law stands for (ITU-T G.711).
int a_law(std::uint8_t byte) {
  const int code = byte ^ 0x55, exponent = code >> 4 & 7, mantissa = (code & 15) << 4;
  const int magnitude = exponent == 0 ? mantissa + 8 : (mantissa + 0x108) << (exponent - 1);
  return code & 0x80 ? magnitude : -magnitude;
}

/// The sample of 16 bits that a byte of mu-law stands for (ITU-T G.711).
int mu_law(std::uint8_t byte) {
  constexpr int kBias = 0x84;
  const int code = ~byte & 0xff, exponent = code >> 4 & 7, mantissa = (code & 15) << 3;
  const int magnitude = ((mantissa + kBias) << exponent) - kBias;
  return code & 0x80 ? -magnitude : magnitude;
}

/// A sample as a part of full scale.
double sample(Encoding encoding, const std::uint8_t* from) {
  switch (encoding) {
    case Encoding::u8: return (static_cast<double>(*from) - 128) / 128;
    case Encoding::i16: return static_cast<double>(little_endian<std::int16_t>(from)) / 32768;
    case Encoding::i24:
      return static_cast<double>(static_cast<std::int8_t>(from[2]) * 65536 + from[1] * 256 + from[0]) / 8388608;
    case Encoding::i32: return static_cast<double>(little_endian<std::int32_t>(from)) / 2147483648.0;
    case Encoding::f32: return static_cast<double>(little_endian<float>(from));
    case Encoding::f64: return little_endian<double>(from);
    case Encoding::a_law: return a_law(*from) / 32768.0;
    case Encoding::mu_law: return mu_law(*from) / 32768.0;
  }
  return 0;
}

class WavSound final : public Sound {
 public:
  explicit WavSound(const Wav& wav) : wav_(wav) {
    rate_ = wav.rate;
    length_ = static_cast<std::int64_t>(wav.length());
  }

  SoundStatus read(Mix mix, std::span<float> samples, std::size_t& count) override {
    const std::uint8_t* from = wav_.frames.data() + position_ * wav_.frame_bytes();
    const std::size_t channels = mix == Mix::mean ? wav_.channels : 1;
    count = std::min(wav_.length() - position_, samples.size());
    for (std::size_t i = 0; i < count; ++i, from += wav_.frame_bytes()) {
      double sum = 0;
      for (std::size_t channel = 0; channel < channels; ++channel)
        sum += sample(wav_.encoding, from + channel * wav_.sample_bytes);
      const double mean = sum / static_cast<double>(channels);
      if (!(std::abs(mean) <= static_cast<double>(std::numeric_limits<float>::max()))) return SoundStatus::corrupt;
      samples[i] = static_cast<float>(mean);
    }
    position_ += count;
    return SoundStatus::good;
  }

 private:
  Wav wav_;
  std::size_t position_ = 0;
};

}  // namespace

std::unique_ptr<Sound> open_wav(Bytes file, SoundStatus& status) {
  Wav wav;
  status = find_frames(file, wav);
  if (status == SoundStatus::good) return std::make_unique<WavSound>(wav);
  return wav.adpcm ? open_with_sndfile(file, SF_FORMAT_WAV, status) : nullptr;
}

}  // namespace opgate::audio

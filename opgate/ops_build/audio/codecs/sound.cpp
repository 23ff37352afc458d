#include "audio/codecs/sound.h"

#include <sndfile.h>

#include "audio/codecs/formats.h"
#include "kernel_toolkit/bytes.h"

namespace opgate::audio {
namespace {

/// Skips the tags ID3v2 at the beginning of a file.
Bytes without_tags(Bytes file) {
  constexpr std::size_t kHead = 10;
  while (has_at(file, 0, "ID3") && file.size() >= kHead) {
    std::size_t size = kHead + (file[5] & 0x10 ? kHead : 0);  // with a footer
    for (std::size_t i = 0; i < 4; ++i) size += std::size_t{file[6 + i] & 0x7fu} << (7 * (3 - i));
    file = file.subspan(std::min(size, file.size()));
  }
  return file;
}

/// Whether the file begins with the header of a frame of MPEG audio, of any version and layer.
bool is_mpeg(Bytes file) {
  if (file.size() < 4 || file[0] != 0xff || (file[1] & 0xe0) != 0xe0) return false;
  const bool version = (file[1] & 0x18) != 0x08, layer = (file[1] & 0x06) != 0;
  return version && layer && (file[2] & 0xf0) != 0xf0 && (file[2] & 0x0c) != 0x0c;
}

}  // namespace

std::unique_ptr<Sound> open(Bytes file, SoundStatus& status) {
  file = without_tags(file);
  if (has_at(file, 0, "RIFF") && has_at(file, 8, "WAVE")) return open_wav(file, status);
  if (has_at(file, 0, "OggS")) {
    status = check_ogg(file);
    return status == SoundStatus::good ? open_with_sndfile(file, SF_FORMAT_OGG, status) : nullptr;
  }
  if (is_mpeg(file)) return open_mp3(file, status);
  const bool form = has_at(file, 0, "FORM");
  if (has_at(file, 0, "fLaC")) return open_with_sndfile(file, SF_FORMAT_FLAC, status);
  if (form && (has_at(file, 8, "AIFF") || has_at(file, 8, "AIFC")))
    return open_with_sndfile(file, SF_FORMAT_AIFF, status);
  if (has_at(file, 0, ".snd")) return open_with_sndfile(file, SF_FORMAT_AU, status);
  if (has_at(file, 0, "caff")) return open_with_sndfile(file, SF_FORMAT_CAF, status);
  if (has_at(file, 0, "riff")) return open_with_sndfile(file, SF_FORMAT_W64, status);
  if (has_at(file, 0, "RF64")) return open_with_sndfile(file, SF_FORMAT_RF64, status);
  status = SoundStatus::unknown_format;
  return nullptr;
}

}  // namespace opgate::audio

// libvorbis takes memory, on the stack too, for the codebooks that a header describes, before it decodes anything. A
// few bytes describe one of 2^24 entries, and there may be 256. So the header is read here first.
//
// The format: Xiph.Org, "Vorbis I specification", sections 3.2.1 and 4.2.4.
#include <ogg/ogg.h>

#include <bit>
#include <cstring>

#include "audio/codecs/formats.h"
#include "kernel_toolkit/bytes.h"

namespace opgate::audio {
namespace {

/// The numbers in all codebooks of a header, and the entries of one. libvorbis' encoder writes an eighth of that at
/// most.
constexpr std::int64_t kMostNumbers = 1 << 19, kMostEntries = 1 << 16;

/// The pages of a file, and the packets of its first stream.
class Ogg {
 public:
  explicit Ogg(Bytes file) : file_(file) { ogg_sync_init(&pages_); }
  Ogg(const Ogg&) = delete;
  Ogg& operator=(const Ogg&) = delete;
  ~Ogg() {
    ogg_sync_clear(&pages_);
    if (begun_) ogg_stream_clear(&stream_);
  }

  /// Finds the next packet. Returns whether there is one, with no damaged bytes before it.
  bool next(ogg_packet& packet) {
    for (;;) {
      if (begun_) {
        if (const int found = ogg_stream_packetout(&stream_, &packet); found != 0) return found == 1;
      }
      ogg_page page;
      const int found = ogg_sync_pageout(&pages_, &page);
      if (found < 0) return false;
      if (found == 0) {
        if (!feed()) return false;
        continue;
      }
      if (!begun_) {
        ogg_stream_init(&stream_, ogg_page_serialno(&page));
        begun_ = true;
      }
      if (ogg_page_serialno(&page) == static_cast<int>(stream_.serialno) && ogg_stream_pagein(&stream_, &page) != 0)
        return false;
    }
  }

  /// Whether the file ends with a whole page. Call it last.
  bool ends() {
    ogg_page page;
    do {
      while (ogg_sync_pageout(&pages_, &page) != 0) continue;
    } while (feed());
    return pages_.fill == pages_.returned;
  }

 private:
  bool feed() {
    constexpr std::size_t kAtOnce = 16384;
    const Bytes part = file_.first(std::min(file_.size(), kAtOnce));
    char* const to = ogg_sync_buffer(&pages_, kAtOnce);
    if (!to || part.empty()) return false;
    std::memcpy(to, part.data(), part.size());
    ogg_sync_wrote(&pages_, static_cast<long>(part.size()));
    file_ = file_.subspan(part.size());
    return true;
  }

  Bytes file_;
  ogg_sync_state pages_{};
  ogg_stream_state stream_{};
  bool begun_ = false;
};

/// The bits of a packet.
class Bits {
 public:
  explicit Bits(const ogg_packet& packet) { oggpack_readinit(&bits_, packet.packet, static_cast<int>(packet.bytes)); }

  /// A number of up to 32 bits; -1 behind the end.
  std::int64_t read(int count) {
    const std::int64_t number = ended_ ? -1 : oggpack_read(&bits_, count);
    ended_ = number < 0;
    return number;
  }

  void skip(std::int64_t count) {
    if (count > 8 * std::int64_t{bits_.storage}) {
      ended_ = true;
    } else {
      oggpack_adv(&bits_, static_cast<int>(count));
    }
  }

  bool ended() const { return ended_; }

 private:
  oggpack_buffer bits_{};
  bool ended_ = false;
};

int bit_width(std::int64_t number) { return std::bit_width(static_cast<std::uint64_t>(number)); }

/// The greatest number whose power is at most `most`.
std::int64_t root(std::int64_t most, std::int64_t power) {
  std::int64_t number = 1;
  for (;; ++number) {
    std::int64_t product = 1;
    for (std::int64_t i = 0; i < power && product <= most; ++i) product *= number + 1;
    if (product > most) return number;
  }
}

/// Walks over a codebook. Returns how many numbers it has, or -1 if it isn't one.
std::int64_t walk_codebook(Bits& bits) {
  if (bits.read(24) != 0x564342) return -1;
  const std::int64_t dims = bits.read(16), entries = bits.read(24);
  if (dims < 1 || entries < 1) return -1;
  if (entries > kMostEntries || dims * entries > kMostNumbers) return kMostNumbers + 1;
  if (bits.read(1) == 1) {  // the lengths of code words in ascending order
    bits.read(5);
    for (std::int64_t i = 0; i < entries && !bits.ended();) i += bits.read(bit_width(entries - i));
  } else {
    const bool sparse = bits.read(1) == 1;
    for (std::int64_t i = 0; i < entries && !bits.ended(); ++i) {
      if (!sparse || bits.read(1) == 1) bits.read(5);
    }
  }
  const std::int64_t lookup = bits.read(4);
  if (bits.ended() || lookup > 2) return -1;
  if (lookup != 0) {
    bits.read(32);
    bits.read(32);
    const std::int64_t width = bits.read(4) + 1;
    bits.read(1);
    bits.skip(width * (lookup == 1 ? root(entries, dims) : entries * dims));
  }
  return bits.ended() ? -1 : dims * entries;
}

SoundStatus check_setup(const ogg_packet& packet) {
  Bits bits(packet);
  bits.skip(8 * 7);  // the type of the packet and "vorbis"
  std::int64_t numbers = 0;
  for (std::int64_t books = bits.read(8) + 1; books > 0; --books) {
    const std::int64_t of_book = walk_codebook(bits);
    if (of_book < 0) return SoundStatus::corrupt;
    numbers += of_book;
    if (numbers > kMostNumbers) return SoundStatus::unsupported;
  }
  return SoundStatus::good;
}

}  // namespace

SoundStatus check_ogg(Bytes file) {
  Ogg ogg(file);
  ogg_packet packet;
  if (!ogg.next(packet)) return SoundStatus::corrupt;
  const auto starts_with = [&](std::string_view text) {
    return has_at({packet.packet, static_cast<std::size_t>(packet.bytes)}, 0, text);
  };
  if (!starts_with("OpusHead")) {
    if (!starts_with("\1vorbis")) return SoundStatus::unsupported;
    if (!ogg.next(packet) || !ogg.next(packet) || !starts_with("\5vorbis")) return SoundStatus::corrupt;
    if (const SoundStatus status = check_setup(packet); status != SoundStatus::good) return status;
  }
  return ogg.ends() ? SoundStatus::good : SoundStatus::corrupt;
}

}  // namespace opgate::audio

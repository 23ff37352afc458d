// The alphabet of byte-level models: a printable character for each byte.
#pragma once

#include <array>

#include "aligned_text.h"

namespace opgate::text {

/// The characters by byte. Printable ones of Latin-1 stand for themselves, the others are U+0100 and so on.
constexpr std::array<char16_t, 256> alphabet_of_bytes() {
  std::array<char16_t, 256> characters{};
  char16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
    characters[static_cast<std::size_t>(byte)] = printable ? static_cast<char16_t>(byte) : next++;
  }
  return characters;
}

inline constexpr std::array<char16_t, 256> kBytesAlphabet = alphabet_of_bytes();

/// The byte that a character stands for; -1 if it is none of the alphabet.
inline int byte_of(char32_t c) {
  static constexpr auto bytes = [] {
    std::array<std::int16_t, 0x144> of{};
    of.fill(-1);
    for (std::int16_t byte = 0; byte < 256; ++byte) of[kBytesAlphabet[static_cast<std::size_t>(byte)]] = byte;
    return of;
  }();
  return c < bytes.size() ? bytes[c] : -1;
}

/// Writes `text`, which the writer passes over, in the alphabet.
inline void write_bytes(std::string_view text, Rewriter& out) {
  for (const char byte : text) {
    const char32_t c = kBytesAlphabet[static_cast<unsigned char>(byte)];
    if (continues(byte))
      out.insert(c);
    else
      out.replace(c);
  }
}

}  // namespace opgate::text

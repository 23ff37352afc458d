// UTF-8: decoding, encoding, and what takes the place of bytes that are none.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace opgate::text {

struct Character {
  char32_t code;
  std::uint32_t length;  ///< in bytes
};

/// The character that begins at `at`, in valid UTF-8.
inline Character character_at(const char* at) {
  const auto byte = [&](int i) { return static_cast<char32_t>(static_cast<unsigned char>(at[i])); };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xe0) return {(first & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  if (first < 0xf0) return {(first & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f), 4};
}

/// Whether a byte is not the first one of its character.
inline bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

/// The character that ends before `end`, in valid UTF-8 that begins at or before it.
inline Character character_before(const char* end) {
  do --end;
  while (continues(*end));
  return character_at(end);
}

/// Writes a character to `to`, which has room for 4 bytes. Returns the number of bytes.
inline std::uint32_t write_character(char32_t c, char* to) {
  const auto put = [&](int i, char32_t bits) { to[i] = static_cast<char>(bits); };
  if (c < 0x80) {
    put(0, c);
    return 1;
  }
  if (c < 0x800) {
    put(0, 0xc0 | c >> 6);
    put(1, 0x80 | (c & 0x3f));
    return 2;
  }
  if (c < 0x10000) {
    put(0, 0xe0 | c >> 12);
    put(1, 0x80 | (c >> 6 & 0x3f));
    put(2, 0x80 | (c & 0x3f));
    return 3;
  }
  put(0, 0xf0 | c >> 18);
  put(1, 0x80 | (c >> 12 & 0x3f));
  put(2, 0x80 | (c >> 6 & 0x3f));
  put(3, 0x80 | (c & 0x3f));
  return 4;
}

inline void append_character(std::string& text, char32_t c) {
  char bytes[4];
  text.append(bytes, write_character(c, bytes));
}

inline bool is_ascii(std::string_view text) {
  std::uint64_t all = 0, word;
  std::size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    std::memcpy(&word, text.data() + i, 8);
    all |= word;
  }
  for (; i < text.size(); ++i) all |= static_cast<unsigned char>(text[i]) & 0x80u;
  return (all & 0x8080808080808080u) == 0;
}

/// How many of the bytes at the front of `text`, which is not empty, are one character, or, as a negative number, one
/// sequence that U+FFFD takes the place of: the longest one that begins a character, or one byte.
inline int sequence_at_front(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return -1;
  const int length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  // The second byte of some characters is limited: no overlong forms, no surrogates, nothing above U+10FFFF.
  const unsigned low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  for (int i = 1; i < length; ++i) {
    const bool good = static_cast<std::size_t>(i) < text.size() &&
                      byte(static_cast<std::size_t>(i)) >= (i == 1 ? low : 0x80) &&
                      byte(static_cast<std::size_t>(i)) <= (i == 1 ? high : 0xbf);
    if (!good) return -i;
  }
  return length;
}

inline bool is_utf8(std::string_view text) {
  if (is_ascii(text)) return true;
  while (!text.empty()) {
    const int length = sequence_at_front(text);
    if (length < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(length));
  }
  return true;
}

/// Text whose invalid sequences have become U+FFFD, as bytes.decode("utf-8", "replace") does in Python.
inline std::string repaired(std::string_view text) {
  std::string good;
  while (!text.empty()) {
    const int length = sequence_at_front(text);
    if (length < 0)
      good += "\xef\xbf\xbd";
    else
      good += text.substr(0, static_cast<std::size_t>(length));
    text.remove_prefix(static_cast<std::size_t>(length < 0 ? -length : length));
  }
  return good;
}

}  // namespace opgate::text

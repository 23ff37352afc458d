// An element of a BYTES tensor as an object of Python: a str if it is UTF-8, otherwise bytes.
//
// Trying to decode bytes that are no text costs Python an exception each. A client may send a hundred thousand of them.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

// Says whether bytes are UTF-8 as Unicode defines it: no surrogates, no longer forms, nothing above U+10FFFF.
inline bool is_utf8(std::string_view bytes) {
  const auto* at = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto* const end = at + bytes.size();
  while (at != end) {
    if (uint64_t word; end - at >= static_cast<std::ptrdiff_t>(sizeof word)) {
      std::memcpy(&word, at, sizeof word);
      if ((word & 0x8080808080808080) == 0) {
        at += sizeof word;
        continue;
      }
    }
    const unsigned char first = *at++;
    if (first < 0x80) continue;
    // The bounds of the second byte exclude longer forms, surrogates and what is above U+10FFFF.
    unsigned char low = 0x80, high = 0xbf;
    std::ptrdiff_t rest = 0;
    if (first >= 0xc2 && first <= 0xdf) {
      rest = 1;
    } else if (first >= 0xe0 && first <= 0xef) {
      rest = 2;
      if (first == 0xe0) low = 0xa0;
      if (first == 0xed) high = 0x9f;
    } else if (first >= 0xf0 && first <= 0xf4) {
      rest = 3;
      if (first == 0xf0) low = 0x90;
      if (first == 0xf4) high = 0x8f;
    } else {
      return false;
    }
    if (end - at < rest) return false;
    for (; rest != 0; --rest, ++at) {
      if (*at < low || *at > high) return false;
      low = 0x80;
      high = 0xbf;
    }
  }
  return true;
}

// Says whether bytes are ASCII.
inline bool is_ascii(std::string_view bytes) {
  const char* at = bytes.data();
  const char* const end = at + bytes.size();
  uint64_t seen = 0, word;
  for (; end - at >= static_cast<std::ptrdiff_t>(sizeof word); at += sizeof word) {
    std::memcpy(&word, at, sizeof word);
    seen |= word;
  }
  for (; at != end; ++at) seen |= static_cast<unsigned char>(*at);
  return (seen & 0x8080808080808080) == 0;
}

// Returns a new reference, or null with an exception.
inline PyObject* text_or_bytes(std::string_view bytes) {
  const auto size = static_cast<Py_ssize_t>(bytes.size());
  if (size > 1 && is_ascii(bytes)) {  // Python has made the shorter ones
    PyObject* const text = PyUnicode_New(size, 0x7f);
    if (text != nullptr) std::memcpy(PyUnicode_DATA(text), bytes.data(), bytes.size());
    return text;
  }
  return is_utf8(bytes) ? PyUnicode_DecodeUTF8(bytes.data(), size, "strict")
                        : PyBytes_FromStringAndSize(bytes.data(), size);
}

// Numbers in the bytes of a file, least significant byte first.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace opgate {

/// Reads a number of type T at any address.
template <typename T>
T little_endian(const std::uint8_t* from) {
  static_assert(std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

/// Whether the bytes have `text` at `position`.
inline bool has_at(std::span<const std::uint8_t> bytes, std::size_t position, std::string_view text) {
  return position <= bytes.size() && bytes.size() - position >= text.size() &&
         std::memcmp(bytes.data() + position, text.data(), text.size()) == 0;
}

}  // namespace opgate

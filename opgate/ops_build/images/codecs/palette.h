// The colours of a picture whose pixels are numbers of colours.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace opgate::codecs {

/// A number that has no colour in the file is black.
struct Palette {
  std::array<std::array<std::uint8_t, 3>, 256> colours{};  ///< R, G, B

  /// Writes the colours of `count` pixels, three bytes per pixel.
  void write(const std::uint8_t* numbers, std::size_t count, std::uint8_t* rgb) const {
    for (std::size_t i = 0; i < count; ++i) {
      for (const std::uint8_t value : colours[numbers[i]]) *rgb++ = value;
    }
  }
};

}  // namespace opgate::codecs

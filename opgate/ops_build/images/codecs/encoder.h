// Encodes pictures: JPEG with libjpeg-turbo, PNG with libdeflate.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

namespace opgate::codecs {

/// Owns bytes that a C library has allocated.
class Bytes {
 public:
  Bytes() = default;
  Bytes(std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  std::span<const std::uint8_t> span() const { return {data_.get(), size_}; }
  bool empty() const { return size_ == 0; }

 private:
  struct Free {
    void operator()(std::uint8_t* data) const { std::free(data); }
  };
  std::unique_ptr<std::uint8_t, Free> data_;
  std::size_t size_ = 0;
};

/// Pixels, row by row. Each has `channels` bytes: 1 (grey) or 3 (R, G, B).
struct Pixels {
  const std::uint8_t* data = nullptr;
  int width = 0;
  int height = 0;
  int channels = 3;

  const std::uint8_t* row(int y) const {
    return data + static_cast<std::size_t>(y) * static_cast<std::size_t>(width) * static_cast<std::size_t>(channels);
  }
};

/// The longest side of a JPEG that libjpeg can encode.
inline constexpr std::int64_t kMaxJpegSide = 65500;

/// A baseline JPEG, 4:2:0, with libjpeg's quality 1..100. Empty if libjpeg fails. Throws std::bad_alloc.
Bytes encode_jpeg(const Pixels& pixels, int quality);

/// A PNG of 8 bits per channel, not interlaced. Empty if libdeflate fails. Throws std::bad_alloc.
Bytes encode_png(const Pixels& pixels);

}  // namespace opgate::codecs

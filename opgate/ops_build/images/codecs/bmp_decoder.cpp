// Windows bitmaps, and those of OS/2 with the same headers: with a palette, or with the bits of R, G and B in 16, 24 or
// 32 bits; uncompressed or run-length encoded.
#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "images/codecs/block_means.h"
#include "images/codecs/formats.h"
#include "images/codecs/palette.h"

namespace opgate::codecs {
namespace {

constexpr std::size_t kFileHeader = 14;
constexpr std::size_t kCoreHeader = 12;  // OS/2's first one, with sides of 16 bits
constexpr std::size_t kInfoHeader = 40;
constexpr std::array<std::size_t, 7> kBmpHeaders = {kCoreHeader, kInfoHeader, 52, 56, 64, 108, 124};

enum BmpCompression : std::uint32_t { kRgb = 0, kRle8 = 1, kRle4 = 2, kBitFields = 3, kAlphaBitFields = 6 };

/// The bits of a pixel that are its red, for example, as a byte.
struct BitField {
  std::uint32_t mask = 0;

  /// Whether the bits lie side by side, 16 of them at most, or there are none.
  bool supported() const {
    const std::uint32_t most = mask == 0 ? 0 : mask >> std::countr_zero(mask);
    return (most & (most + 1)) == 0 && most <= 0xffff;
  }

  std::uint8_t of(std::uint32_t pixel) const {
    if (mask == 0) return 0;
    const int shift = std::countr_zero(mask);
    return static_cast<std::uint8_t>(((pixel & mask) >> shift) * 255 / (mask >> shift));
  }
};

class BmpDecoder final : public Decoder {
 public:
  explicit BmpDecoder(ByteSpan file) : file_(file) {}

  DecodeStatus read_header(std::int64_t max_pixels) {
    if (file_.size() < kFileHeader + 4) return DecodeStatus::corrupt;
    const std::size_t header = number(kFileHeader, 4);
    // "BM" is how many texts begin.
    if (std::ranges::count(kBmpHeaders, header) == 0) return DecodeStatus::unknown_format;
    if (file_.size() < kFileHeader + header) return DecodeStatus::corrupt;
    const bool core = header == kCoreHeader;
    const auto side = [&](std::size_t at) {
      return core ? std::int64_t{number(at, 2)} : std::int64_t{static_cast<std::int32_t>(number(at, 4))};
    };
    const std::int64_t width = side(18), height = side(core ? 20 : 22);
    if (width <= 0 || height == 0) return DecodeStatus::corrupt;
    top_down_ = height < 0;
    if (const auto status = check_size(width, std::abs(height), max_pixels); status != DecodeStatus::good)
      return status;
    header_.width = static_cast<int>(width);
    header_.height = static_cast<int>(std::abs(height));
    bits_ = number(core ? 24 : 28, 2);
    compression_ = core ? kRgb : number(30, 4);
    if (!supported()) return DecodeStatus::unsupported;
    std::size_t at = kFileHeader + header;  // behind the header: masks, then the palette
    if (const auto status = read_fields(header, at); status != DecodeStatus::good) return status;
    if (bits_ <= 8 && !read_palette(core ? 0 : number(46, 4), core ? 3 : 4, at)) return DecodeStatus::corrupt;
    const std::uint32_t begin = number(10, 4);
    return find_pixels(begin == 0 ? at : begin) ? DecodeStatus::good : DecodeStatus::corrupt;
  }

  DecodeStatus start(int reduction, std::uint8_t background) override {
    reduction_ = reduction;
    background_ = background;
    if (reduction > 1) means_.start(header_.width, header_.height, reduction);
    const auto width = static_cast<std::size_t>(header_.width), height = static_cast<std::size_t>(header_.height);
    numbers_.resize(encoded() ? width * height : bits_ < 8 ? width : 0);
    if (fields_[3].mask != 0 && !has_alpha()) fields_[3].mask = 0;
    return !encoded() || decode_runs() ? DecodeStatus::good : DecodeStatus::corrupt;
  }

  DecodeStatus read_row(std::uint8_t* rgb) override {
    const auto read_full_row = [this](std::uint8_t* row) {
      write_rgb(next_row_++, row);
      return DecodeStatus::good;
    };
    return reduction_ == 1 ? read_full_row(rgb) : means_.read(read_full_row, rgb);
  }

  DecodeStatus finish() override { return DecodeStatus::good; }

 private:
  std::uint32_t number(std::size_t at, std::size_t size) const { return little_endian(file_.subspan(at, size)); }

  bool encoded() const { return compression_ == kRle8 || compression_ == kRle4; }

  bool supported() const {
    switch (compression_) {
      case kRgb: return std::ranges::count(std::array{1, 4, 8, 16, 24, 32}, static_cast<int>(bits_)) > 0;
      case kRle8: return bits_ == 8;
      case kRle4: return bits_ == 4;
      case kBitFields:
      case kAlphaBitFields: return bits_ == 16 || bits_ == 32;
      default: return false;  // a JPEG or a PNG inside of a BMP
    }
  }

  /// Finds which bits are R, G, B and alpha. Masks stand in a longer header or behind a short one: then `at` moves on.
  DecodeStatus read_fields(std::size_t header, std::size_t& at) {
    if (compression_ != kBitFields && compression_ != kAlphaBitFields) {
      const bool few = bits_ == 16;
      fields_ = {BitField{few ? 0x7c00u : 0xff0000u}, {few ? 0x3e0u : 0xff00u}, {few ? 0x1fu : 0xffu}, {0}};
      return DecodeStatus::good;
    }
    if (header == 64) return DecodeStatus::unsupported;  // there the number means another compression
    const std::size_t count = header >= 56 || compression_ == kAlphaBitFields ? 4 : 3;
    constexpr std::size_t kMasks = kFileHeader + kInfoHeader;
    if (file_.size() < kMasks + 4 * count) return DecodeStatus::corrupt;
    for (std::size_t i = 0; i < count; ++i) {
      fields_[i].mask = number(kMasks + 4 * i, 4);
      if (!fields_[i].supported()) return DecodeStatus::unsupported;
    }
    if (header == kInfoHeader) at += 4 * count;
    return DecodeStatus::good;
  }

  /// Entries are B, G, R and, except in OS/2's first format, an unused byte.
  bool read_palette(std::size_t stated, std::size_t entry_size, std::size_t& at) {
    const std::size_t most = std::size_t{1} << bits_, count = stated == 0 ? most : std::min(stated, most);
    if (file_.size() < at + count * entry_size) return false;
    for (std::size_t i = 0; i < count; ++i, at += entry_size) {
      for (std::size_t c = 0; c < 3; ++c) palette_.colours[i][c] = file_[at + 2 - c];
    }
    return true;
  }

  /// Whether the file has all pixels, which begin at `begin`. How many there are of compressed ones shows later.
  bool find_pixels(std::size_t begin) {
    if (begin > file_.size()) return false;
    pixels_ = file_.subspan(begin);
    if (encoded()) return true;
    const std::size_t row_bits = std::size_t{bits_} * static_cast<std::size_t>(header_.width);
    pitch_ = (row_bits + 31) / 32 * 4;
    return pixels_.size() >= pitch_ * static_cast<std::size_t>(header_.height - 1) + (row_bits + 7) / 8;
  }

  /// Writes the numbers of all pixels to numbers_, those that no run has stay 0. Returns whether the runs are whole.
  bool decode_runs() {
    const std::int64_t width = header_.width, height = header_.height;
    const bool nibbles = compression_ == kRle4;
    std::int64_t x = 0, y = 0;  // y counts as the file does
    // Writes `count` pixels of `source`, or of its first byte repeatedly.
    const auto write = [&](std::size_t count, const std::uint8_t* source, bool repeat) {
      std::uint8_t* row = numbers_.data() + y * width;
      for (std::size_t i = 0; i < count; ++i, ++x) {
        if (x >= width) continue;
        const std::uint8_t byte = source[repeat ? 0 : nibbles ? i / 2 : i];
        row[x] = !nibbles ? byte : i % 2 == 0 ? byte >> 4 : byte & 15;
      }
    };
    ByteSpan left = pixels_;
    while (y < height && left.size() >= 2) {
      const std::size_t count = left[0], value = left[1];
      left = left.subspan(2);
      if (count > 0) {
        write(count, left.data() - 1, true);
      } else if (value == 0) {  // the end of a row
        x = 0;
        ++y;
      } else if (value == 1) {  // the end of the picture
        return true;
      } else if (value == 2) {  // a jump
        if (left.size() < 2) return false;
        x += left[0];
        y += left[1];
        left = left.subspan(2);
      } else {  // `value` pixels as they are, filled up to an even number of bytes
        const std::size_t size = nibbles ? (value + 1) / 2 : value;
        if (left.size() < size) return false;
        write(value, left.data(), false);
        left = left.subspan(std::min(left.size(), size + size % 2));
      }
    }
    return y >= height || (y == height - 1 && x >= width);
  }

  /// Whether the alpha of some pixel isn't 0. Programs that know no alpha leave it 0 everywhere.
  bool has_alpha() const {
    const std::size_t size = bits_ / 8, width = static_cast<std::size_t>(header_.width);
    for (std::size_t y = 0; y < static_cast<std::size_t>(header_.height); ++y) {
      const std::uint8_t* pixel = pixels_.data() + y * pitch_;
      for (std::size_t x = 0; x < width; ++x, pixel += size) {
        if ((little_endian({pixel, size}) & fields_[3].mask) != 0) return true;
      }
    }
    return false;
  }

  void write_rgb(int y, std::uint8_t* rgb) {
    const auto width = static_cast<std::size_t>(header_.width);
    const auto row = static_cast<std::size_t>(top_down_ ? y : header_.height - 1 - y);
    if (encoded()) return palette_.write(numbers_.data() + row * width, width, rgb);
    const std::uint8_t* from = pixels_.data() + row * pitch_;
    if (bits_ == 8) return palette_.write(from, width, rgb);
    if (bits_ < 8) {
      const std::size_t per_byte = 8 / bits_;
      for (std::size_t x = 0; x < width; ++x) {
        const std::size_t shift = 8 - bits_ * (x % per_byte + 1);
        numbers_[x] = static_cast<std::uint8_t>((from[x / per_byte] >> shift) & ((1 << bits_) - 1));
      }
      return palette_.write(numbers_.data(), width, rgb);
    }
    if (bits_ == 24) {
      for (std::size_t x = 0; x < width; ++x) {
        for (std::size_t c = 0; c < 3; ++c) rgb[3 * x + c] = from[3 * x + 2 - c];
      }
      return;
    }
    const std::size_t size = bits_ / 8;
    for (std::size_t x = 0; x < width; ++x, from += size) {
      const std::uint32_t pixel = little_endian({from, size});
      const unsigned alpha = fields_[3].mask == 0 ? 255 : fields_[3].of(pixel);
      for (std::size_t c = 0; c < 3; ++c) rgb[3 * x + c] = over_background(fields_[c].of(pixel), alpha, background_);
    }
  }

  ByteSpan file_, pixels_;
  bool top_down_ = false;
  std::uint32_t bits_ = 0, compression_ = kRgb;
  std::array<BitField, 4> fields_{};  ///< of R, G, B and alpha
  Palette palette_;
  std::size_t pitch_ = 0;  ///< bytes from row to row
  int reduction_ = 1, next_row_ = 0;
  unsigned background_ = 0;
  std::vector<std::uint8_t> numbers_;  ///< of the colours of one row, or of all rows if they are compressed
  BlockMeans means_;
};

}  // namespace

std::unique_ptr<Decoder> open_bmp(ByteSpan bytes, std::int64_t max_pixels, DecodeStatus& status) {
  auto decoder = std::make_unique<BmpDecoder>(bytes);
  status = decoder->read_header(max_pixels);
  if (status != DecodeStatus::good) return nullptr;
  return decoder;
}

}  // namespace opgate::codecs

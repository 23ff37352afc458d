// The first picture of a GIF: blocks, and pixels in LZW codes.
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "images/codecs/block_means.h"
#include "images/codecs/formats.h"
#include "images/codecs/palette.h"

namespace opgate::codecs {
namespace {

constexpr std::uint8_t kExtension = 0x21, kImage = 0x2c, kGraphicControl = 0xf9;

/// Reads the bytes of a file in order. Behind the end they are 0, and ended() is true.
class GifBytes {
 public:
  explicit GifBytes(ByteSpan left = {}) : left_(left) {}

  bool ended() const { return ended_; }

  std::uint8_t byte() {
    const ByteSpan one = bytes(1);
    return one.empty() ? 0 : one[0];
  }
  int word() {
    const ByteSpan two = bytes(2);
    return static_cast<int>(little_endian(two));
  }
  /// Returns `count` bytes, or none if there are fewer.
  ByteSpan bytes(std::size_t count) {
    ended_ |= count > left_.size();
    if (ended_) return {};
    const ByteSpan taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }
  /// Skips sub-blocks, of which each has its length before it. The last one is empty.
  void skip_blocks() {
    while (const std::uint8_t size = byte()) bytes(size);
  }

 private:
  ByteSpan left_;
  bool ended_ = false;
};

/// Reads codes of up to 12 bits from sub-blocks.
class GifCodes {
 public:
  explicit GifCodes(GifBytes& file) : file_(file) {}

  /// Returns the next code of `size` bits, or nothing behind the last one.
  std::optional<unsigned> next(int size) {
    for (; count_ < size; count_ += 8) {
      if (block_.empty()) block_ = file_.bytes(ended_ ? 0 : file_.byte());
      ended_ = block_.empty();
      if (ended_) return std::nullopt;
      bits_ |= std::uint32_t{block_[0]} << count_;
      block_ = block_.subspan(1);
    }
    const unsigned code = bits_ & ((1u << size) - 1);
    bits_ >>= size;
    count_ -= size;
    return code;
  }

  /// Skips the rest, with the empty sub-block behind it.
  void skip() {
    if (!ended_) file_.skip_blocks();
  }

 private:
  GifBytes& file_;
  ByteSpan block_;
  std::uint32_t bits_ = 0;
  int count_ = 0;
  bool ended_ = false;
};

/// Expands LZW codes. A code is a string of bytes: that of another code and one byte more.
class GifStrings {
 public:
  explicit GifStrings(int bits) : bits_(bits), clear_(1u << bits) { reset(); }

  int code_size() const { return size_; }
  bool clears(unsigned code) const { return code == clear_; }
  bool ends(unsigned code) const { return code == clear_ + 1; }

  void reset() {
    size_ = bits_ + 1;
    next_ = clear_ + 2;
    before_.reset();
  }

  /// Returns the string of a code, last byte first, or an empty one if there is no such code.
  ByteSpan expand(unsigned code) {
    const bool itself = before_ && code == next_ && next_ < kMost;  // the string that this code adds
    if (!itself && code >= (before_ ? next_ : clear_)) return {};
    std::size_t length = itself ? 1 : 0;
    unsigned at = itself ? *before_ : code;
    for (; at >= clear_; at = prefix_[at]) string_[length++] = last_[at];
    string_[length++] = static_cast<std::uint8_t>(at);
    if (itself) string_[0] = static_cast<std::uint8_t>(at);
    if (before_ && next_ < kMost) {
      prefix_[next_] = static_cast<std::uint16_t>(*before_);
      last_[next_] = static_cast<std::uint8_t>(at);
      ++next_;
      if (next_ == 1u << size_ && size_ < 12) ++size_;
    }
    before_ = code;
    return {string_.data(), length};
  }

 private:
  static constexpr unsigned kMost = 4096;

  int bits_, size_ = 0;
  unsigned clear_, next_ = 0;
  std::optional<unsigned> before_;  ///< the code before this one
  std::array<std::uint16_t, kMost> prefix_{};
  std::array<std::uint8_t, kMost> last_{};
  std::array<std::uint8_t, kMost + 1> string_{};
};

/// The row in the picture of the row that comes as number `i`.
int interlaced_row(int i, int height) {
  for (const auto& [first, step] : std::array<std::array<int, 2>, 4>{{{0, 8}, {4, 8}, {2, 4}, {1, 2}}}) {
    const int rows = first < height ? (height - first + step - 1) / step : 0;
    if (i < rows) return first + i * step;
    i -= rows;
  }
  return 0;
}

class GifDecoder final : public Decoder {
 public:
  explicit GifDecoder(ByteSpan file) : file_(file) {}

  DecodeStatus read_header(std::int64_t max_pixels) {
    constexpr std::size_t kMagic = 6;
    file_.bytes(kMagic);
    int canvas_width = file_.word(), canvas_height = file_.word();
    const unsigned flags = file_.byte();
    file_.bytes(2);  // the colour of the background, and the shape of a pixel
    for (std::size_t i = 0; i < 256; ++i) palette_.colours[i].fill(static_cast<std::uint8_t>(i));  // if there is none
    read_palette(flags);
    if (!find_image()) return DecodeStatus::corrupt;
    left_ = file_.word();
    top_ = file_.word();
    width_ = file_.word();
    height_ = file_.word();
    const unsigned image_flags = file_.byte();
    interlaced_ = (image_flags & 0x40) != 0;
    read_palette(image_flags);
    code_bits_ = file_.byte();
    if (file_.ended() || width_ == 0 || height_ == 0 || code_bits_ < 1 || code_bits_ > 8) return DecodeStatus::corrupt;
    canvas_width = std::max(canvas_width, left_ + width_);
    canvas_height = std::max(canvas_height, top_ + height_);
    header_.width = canvas_width;
    header_.height = canvas_height;
    return check_size(canvas_width, canvas_height, max_pixels);
  }

  DecodeStatus start(int reduction, std::uint8_t background) override {
    reduction_ = reduction;
    if (reduction > 1) means_.start(header_.width, header_.height, reduction);
    if (transparent_) palette_.colours[*transparent_].fill(background);
    numbers_.assign(static_cast<std::size_t>(header_.width) * static_cast<std::size_t>(header_.height),
                    transparent_.value_or(0));
    GifCodes codes(file_);
    if (!decode(codes)) return DecodeStatus::corrupt;
    codes.skip();
    return DecodeStatus::good;
  }

  DecodeStatus read_row(std::uint8_t* rgb) override {
    const auto read_full_row = [this](std::uint8_t* row) {
      const auto width = static_cast<std::size_t>(header_.width);
      palette_.write(numbers_.data() + width * static_cast<std::size_t>(next_row_++), width, row);
      return DecodeStatus::good;
    };
    return reduction_ == 1 ? read_full_row(rgb) : means_.read(read_full_row, rgb);
  }

  DecodeStatus finish() override { return file_.ended() ? DecodeStatus::corrupt : DecodeStatus::good; }

 private:
  void read_palette(unsigned flags) {
    if (!(flags & 0x80)) return;
    const std::size_t count = std::size_t{2} << (flags & 7);
    const ByteSpan entries = file_.bytes(3 * count);
    if (entries.empty()) return;
    palette_ = {};
    for (std::size_t i = 0; i < count; ++i) std::ranges::copy(entries.subspan(3 * i, 3), palette_.colours[i].begin());
  }

  /// Skips to the first picture. Keeps which colour is transparent in it.
  bool find_image() {
    while (!file_.ended()) {
      switch (file_.byte()) {
        case 0: break;  // some programs leave one between two blocks
        case kImage: return !file_.ended();
        case kExtension:
          if (file_.byte() == kGraphicControl) read_graphic_control();
          file_.skip_blocks();
          break;
        default: return false;
      }
    }
    return false;
  }

  void read_graphic_control() {
    const ByteSpan block = file_.bytes(file_.byte());
    transparent_.reset();
    if (block.size() >= 4 && block[0] & 1) transparent_ = block[3];
  }

  /// Writes the numbers of all pixels of the picture. Returns whether there are enough of them.
  bool decode(GifCodes& codes) {
    GifStrings strings(code_bits_);
    const auto start_of = [this](int row) {
      const int y = top_ + (interlaced_ ? interlaced_row(row, height_) : row);
      return numbers_.data() + std::ptrdiff_t{y} * header_.width + left_;
    };
    int row = 0, x = 0;
    std::uint8_t* out = start_of(0);
    while (row < height_) {
      const std::optional<unsigned> code = codes.next(strings.code_size());
      if (!code || strings.ends(*code)) return false;
      if (strings.clears(*code)) {
        strings.reset();
        continue;
      }
      const ByteSpan reversed = strings.expand(*code);
      if (reversed.empty()) return false;
      for (std::size_t i = reversed.size(); i-- > 0 && row < height_;) {
        out[x] = reversed[i];
        if (++x < width_) continue;
        x = 0;
        out = start_of(++row);
      }
    }
    return true;
  }

  GifBytes file_;
  Palette palette_;
  std::optional<std::uint8_t> transparent_;
  int left_ = 0, top_ = 0, width_ = 0, height_ = 0;  ///< of the picture in the canvas
  int code_bits_ = 0;
  bool interlaced_ = false;
  int reduction_ = 1, next_row_ = 0;
  std::vector<std::uint8_t> numbers_;  ///< of the colours of the canvas
  BlockMeans means_;
};

}  // namespace

std::unique_ptr<Decoder> open_gif(ByteSpan bytes, std::int64_t max_pixels, DecodeStatus& status) {
  auto decoder = std::make_unique<GifDecoder>(bytes);
  status = decoder->read_header(max_pixels);
  if (status != DecodeStatus::good) return nullptr;
  return decoder;
}

}  // namespace opgate::codecs

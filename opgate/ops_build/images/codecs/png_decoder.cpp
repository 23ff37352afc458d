// libpng reports an error through a callback that must not return. Our callback jumps back to the setjmp of the method
// that called libpng. Only frames of libpng and callbacks without destructors are between the two, so the jump skips no
// destructor.
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include <png.h>

#include "images/codecs/block_means.h"
#include "images/codecs/formats.h"

namespace opgate::codecs {
namespace {

class PngDecoder final : public Decoder {
 public:
  explicit PngDecoder(std::span<const std::uint8_t> bytes) : left_(bytes) {}
  ~PngDecoder() override { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  DecodeStatus read_header(std::int64_t max_pixels) {
    if (const DecodeStatus status = checked(guarded_read_header()); status != DecodeStatus::good) return status;
    const std::int64_t width = png_get_image_width(png_, info_);
    const std::int64_t height = png_get_image_height(png_, info_);
    if (const DecodeStatus status = check_size(width, height, max_pixels); status != DecodeStatus::good) return status;
    header_.width = static_cast<int>(width);
    header_.height = static_cast<int>(height);
    header_.orientation = Orientation::of_exif(orientation());
    return DecodeStatus::good;
  }

  DecodeStatus start(int reduction, std::uint8_t background) override {
    reduction_ = reduction;
    background_ = background;
    if (const DecodeStatus status = checked(guarded_start()); status != DecodeStatus::good) return status;
    const std::size_t row_bytes = png_get_rowbytes(png_, info_);
    channels_ = png_get_channels(png_, info_);
    if (reduction > 1) means_.start(header_.width, header_.height, reduction);
    const bool interlaced = png_get_interlace_type(png_, info_) != PNG_INTERLACE_NONE;
    pixels_.resize(row_bytes * static_cast<std::size_t>(interlaced ? header_.height : 1));
    if (!interlaced) return DecodeStatus::good;
    rows_.resize(static_cast<std::size_t>(header_.height));
    for (std::size_t y = 0; y < rows_.size(); ++y) rows_[y] = pixels_.data() + y * row_bytes;
    return checked(guarded_read_all());
  }

  DecodeStatus read_row(std::uint8_t* rgb) override {
    if (reduction_ == 1) return read_full_row(rgb);
    return means_.read([this](std::uint8_t* row) { return read_full_row(row); }, rgb);
  }

  DecodeStatus finish() override { return checked(guarded_finish()); }

 private:
  // Only these methods have a setjmp. They have no local variable that changes after it.

  DecodeStatus guarded_read_header() {
    if (setjmp(jump_)) return DecodeStatus::corrupt;
    png_ = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, this, &on_error, &on_warning, this, &allocate, &release);
    if (!png_) return DecodeStatus::corrupt;
    info_ = png_create_info_struct(png_);
    if (!info_) return DecodeStatus::corrupt;
    png_set_read_fn(png_, this, &read_bytes);
    // check_size() has our limits, which have their own status.
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    // Texts and profiles are skipped. Their checksums are still checked.
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, kSkippedChunks, kSkippedCount);
    png_set_crc_action(png_, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    png_read_info(png_, info_);
    return DecodeStatus::good;
  }

  DecodeStatus guarded_start() {
    if (setjmp(jump_)) return DecodeStatus::corrupt;
    png_set_expand(png_);
    png_set_scale_16(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return DecodeStatus::good;
  }

  DecodeStatus guarded_read_row(std::uint8_t* row) {
    if (setjmp(jump_)) return DecodeStatus::corrupt;
    png_read_row(png_, row, nullptr);
    return DecodeStatus::good;
  }

  DecodeStatus guarded_read_all() {
    if (setjmp(jump_)) return DecodeStatus::corrupt;
    png_read_image(png_, rows_.data());
    return DecodeStatus::good;
  }

  DecodeStatus guarded_finish() {
    if (setjmp(jump_)) return DecodeStatus::corrupt;
    png_read_end(png_, nullptr);
    return DecodeStatus::good;
  }

  DecodeStatus checked(DecodeStatus status) const {
    if (out_of_memory_) throw std::bad_alloc();
    return status;
  }

  DecodeStatus read_full_row(std::uint8_t* rgb) {
    const std::uint8_t* row = pixels_.data();
    if (!rows_.empty())
      row = rows_[static_cast<std::size_t>(next_row_)];
    else if (const DecodeStatus status = checked(guarded_read_row(pixels_.data())); status != DecodeStatus::good)
      return status;
    ++next_row_;
    write_rgb(row, rgb);
    return DecodeStatus::good;
  }

  void write_rgb(const std::uint8_t* row, std::uint8_t* rgb) const {
    const auto count = static_cast<std::size_t>(header_.width);
    const std::size_t channels = channels_;
    if (channels == 3) {
      std::memcpy(rgb, row, 3 * count);
    } else if (channels == 1) {
      for (std::size_t i = 0; i < count; ++i) rgb[3 * i] = rgb[3 * i + 1] = rgb[3 * i + 2] = row[i];
    } else {
      const bool grey = channels == 2;
      for (std::size_t i = 0; i < count; ++i, row += channels, rgb += 3) {
        const unsigned alpha = row[channels - 1];
        for (std::size_t c = 0; c < 3; ++c) rgb[c] = over_background(row[grey ? 0 : c], alpha, background_);
      }
    }
  }

  int orientation() const {
    png_uint_32 size = 0;
    png_bytep exif = nullptr;
    if (!png_get_eXIf_1(png_, info_, &size, &exif)) return 1;
    return exif_orientation({exif, size});
  }

  static void on_error(png_structp png, png_const_charp) {
    std::longjmp(static_cast<PngDecoder*>(png_get_error_ptr(png))->jump_, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}

  static void read_bytes(png_structp png, png_bytep out, std::size_t count) {
    auto& left = static_cast<PngDecoder*>(png_get_io_ptr(png))->left_;
    if (count > left.size()) png_error(png, "truncated");
    std::memcpy(out, left.data(), count);
    left = left.subspan(count);
  }

  static png_voidp allocate(png_structp png, png_alloc_size_t size) {
    void* memory = std::malloc(size);
    if (!memory) static_cast<PngDecoder*>(png_get_mem_ptr(png))->out_of_memory_ = true;
    return memory;
  }
  static void release(png_structp, png_voidp memory) { std::free(memory); }

  static constexpr png_byte kSkippedChunks[] =
      "bKGD\0cHRM\0gAMA\0hIST\0iCCP\0iTXt\0oFFs\0pCAL\0pHYs\0sBIT\0sCAL\0sPLT\0sRGB\0sTER\0tEXt\0tIME\0zTXt";
  static constexpr int kSkippedCount = sizeof kSkippedChunks / 5;

  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf jump_{};
  bool out_of_memory_ = false;
  std::span<const std::uint8_t> left_;  ///< the bytes that libpng has not read yet
  int reduction_ = 1;
  unsigned background_ = 0;
  std::size_t channels_ = 0;
  int next_row_ = 0;
  std::vector<std::uint8_t> pixels_;  ///< one row, or all of an interlaced picture
  std::vector<png_bytep> rows_;       ///< of an interlaced picture
  BlockMeans means_;
};

}  // namespace

std::unique_ptr<Decoder> open_png(std::span<const std::uint8_t> bytes, std::int64_t max_pixels, DecodeStatus& status) {
  auto decoder = std::make_unique<PngDecoder>(bytes);
  status = decoder->read_header(max_pixels);
  if (status != DecodeStatus::good) return nullptr;
  return decoder;
}

}  // namespace opgate::codecs

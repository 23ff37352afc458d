// libjpeg reports an error through a callback that must not return. Our callback jumps back to the setjmp of the method
// that called libjpeg. Only frames of libjpeg and callbacks without destructors are between the two, so the jump skips
// no destructor.
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include <jerror.h>
#include <jpeglib.h>

#include "images/codecs/formats.h"

namespace opgate::codecs {
namespace {

/// The largest number of scans. Real progressive files have about ten. A scan may cost a pass over the whole picture
/// and only a few bytes of the file, so there must be a limit.
constexpr int kMaxScans = 100;

constexpr std::uint8_t kExifPrefix[] = {'E', 'x', 'i', 'f', 0, 0};

class JpegDecoder final : public Decoder {
 public:
  JpegDecoder() {
    cinfo_.err = jpeg_std_error(&errors_);
    errors_.error_exit = &on_error;
    errors_.emit_message = &on_message;
    errors_.output_message = [](j_common_ptr) {};
    progress_.progress_monitor = &on_progress;
    cinfo_.client_data = this;
  }
  ~JpegDecoder() override { jpeg_destroy_decompress(&cinfo_); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  DecodeStatus read_header(std::span<const std::uint8_t> bytes, std::int64_t max_pixels) {
    if (const DecodeStatus status = checked(guarded_read_header(bytes)); status != DecodeStatus::good) return status;
    header_.width = static_cast<int>(cinfo_.image_width);
    header_.height = static_cast<int>(cinfo_.image_height);
    header_.orientation = Orientation::of_exif(orientation());
    return check_size(header_.width, header_.height, max_pixels);
  }

  DecodeStatus start(int reduction, std::uint8_t) override {
    switch (cinfo_.jpeg_color_space) {
      case JCS_GRAYSCALE:
      case JCS_YCbCr:
      case JCS_RGB: cinfo_.out_color_space = JCS_RGB; break;
      case JCS_CMYK:
      case JCS_YCCK: cinfo_.out_color_space = JCS_CMYK; break;
      default: return DecodeStatus::unsupported;
    }
    cinfo_.scale_num = 1;
    cinfo_.scale_denom = static_cast<unsigned>(reduction);
    if (const DecodeStatus status = checked(guarded_start()); status != DecodeStatus::good) return status;
    if (cinfo_.out_color_space == JCS_CMYK) cmyk_.resize(std::size_t{4} * cinfo_.output_width);
    return DecodeStatus::good;
  }

  DecodeStatus read_row(std::uint8_t* rgb) override {
    if (cmyk_.empty()) return checked(guarded_read_row(rgb));
    const DecodeStatus status = checked(guarded_read_row(cmyk_.data()));
    if (status == DecodeStatus::good) rgb_from_cmyk(cmyk_.data(), cinfo_.output_width, rgb);
    return status;
  }

  /// Searches the marker for the end of the picture, which the entropy decoder doesn't always read.
  DecodeStatus finish() override { return checked(guarded_finish()); }

 private:
  // Only these methods have a setjmp. They have no local variable that changes after it.

  DecodeStatus guarded_read_header(std::span<const std::uint8_t> bytes) {
    if (setjmp(jump_)) return status_;
    jpeg_create_decompress(&cinfo_);
    cinfo_.progress = &progress_;
    jpeg_save_markers(&cinfo_, JPEG_APP0 + 1, 0xffff);
    jpeg_mem_src(&cinfo_, bytes.data(), static_cast<unsigned long>(bytes.size()));
    jpeg_read_header(&cinfo_, TRUE);
    return DecodeStatus::good;
  }

  DecodeStatus guarded_start() {
    if (setjmp(jump_)) return status_;
    jpeg_start_decompress(&cinfo_);
    return DecodeStatus::good;
  }

  DecodeStatus guarded_read_row(std::uint8_t* row) {
    if (setjmp(jump_)) return status_;
    return jpeg_read_scanlines(&cinfo_, &row, 1) == 1 ? DecodeStatus::good : DecodeStatus::corrupt;
  }

  DecodeStatus guarded_finish() {
    if (setjmp(jump_)) return status_;
    jpeg_finish_decompress(&cinfo_);
    return DecodeStatus::good;
  }

  DecodeStatus checked(DecodeStatus status) const {
    if (out_of_memory_) throw std::bad_alloc();
    return status;
  }

  int orientation() const {
    for (const jpeg_marker_struct* marker = cinfo_.marker_list; marker; marker = marker->next) {
      if (marker->data_length < sizeof kExifPrefix) continue;
      if (std::memcmp(marker->data, kExifPrefix, sizeof kExifPrefix) != 0) continue;
      return exif_orientation({marker->data + sizeof kExifPrefix, marker->data_length - sizeof kExifPrefix});
    }
    return 1;
  }

  /// Adobe writes CMYK inverted, and in practice everybody does: the bytes are 255 - C and so on.
  static void rgb_from_cmyk(const std::uint8_t* cmyk, std::size_t count, std::uint8_t* rgb) {
    for (std::size_t i = 0; i < count; ++i) {
      const unsigned k = cmyk[4 * i + 3];
      for (std::size_t c = 0; c < 3; ++c) rgb[3 * i + c] = static_cast<std::uint8_t>((cmyk[4 * i + c] * k + 127) / 255);
    }
  }

  [[noreturn]] void fail(DecodeStatus status) {
    status_ = status;
    std::longjmp(jump_, 1);
  }

  static JpegDecoder& of(j_common_ptr cinfo) { return *static_cast<JpegDecoder*>(cinfo->client_data); }

  static void on_error(j_common_ptr cinfo) {
    switch (cinfo->err->msg_code) {
      case JERR_OUT_OF_MEMORY: of(cinfo).out_of_memory_ = true; [[fallthrough]];
      case JERR_ARITH_NOTIMPL:
      case JERR_BAD_PRECISION:
      case JERR_CCIR601_NOTIMPL:
      case JERR_COMPONENT_COUNT:
      case JERR_CONVERSION_NOTIMPL:
      case JERR_FRACT_SAMPLE_NOTIMPL:
      case JERR_IMAGE_TOO_BIG:
      case JERR_NOTIMPL:
      case JERR_NOT_COMPILED:
      case JERR_SOF_UNSUPPORTED: of(cinfo).fail(DecodeStatus::unsupported);
      default: of(cinfo).fail(DecodeStatus::corrupt);
    }
  }

  /// libjpeg warns (level -1) before it guesses pixels. The first warning ends the decoding, except for warnings that
  /// files of cameras and editors cause and that change no pixel.
  static void on_message(j_common_ptr cinfo, int level) {
    if (level >= 0) return;
    switch (cinfo->err->msg_code) {
      case JWRN_ADOBE_XFORM:
      case JWRN_EXTRANEOUS_DATA:
      case JWRN_JFIF_MAJOR: return;
      default: of(cinfo).fail(DecodeStatus::corrupt);
    }
  }

  static void on_progress(j_common_ptr cinfo) {
    if (reinterpret_cast<j_decompress_ptr>(cinfo)->input_scan_number > kMaxScans)
      of(cinfo).fail(DecodeStatus::unsupported);
  }

  jpeg_decompress_struct cinfo_{};
  jpeg_error_mgr errors_{};
  jpeg_progress_mgr progress_{};
  std::jmp_buf jump_{};
  DecodeStatus status_ = DecodeStatus::good;
  bool out_of_memory_ = false;
  std::vector<std::uint8_t> cmyk_;
};

}  // namespace

std::unique_ptr<Decoder> open_jpeg(std::span<const std::uint8_t> bytes, std::int64_t max_pixels, DecodeStatus& status) {
  auto decoder = std::make_unique<JpegDecoder>();
  status = decoder->read_header(bytes, max_pixels);
  if (status != DecodeStatus::good) return nullptr;
  return decoder;
}

}  // namespace opgate::codecs

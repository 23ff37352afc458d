// An error of libjpeg ends in a longjmp to compress(). No frame between the two has a destructor.
#include <csetjmp>
#include <cstdio>
#include <new>

#include <jerror.h>
#include <jpeglib.h>

#include "images/codecs/encoder.h"

namespace opgate::codecs {
namespace {

struct JpegEncoder {
  jpeg_compress_struct cinfo{};
  jpeg_error_mgr errors{};
  std::jmp_buf jump{};
  unsigned char* data = nullptr;
  unsigned long size = 0;

  JpegEncoder() {
    cinfo.err = jpeg_std_error(&errors);
    errors.error_exit = [](j_common_ptr common) {
      std::longjmp(static_cast<JpegEncoder*>(common->client_data)->jump, 1);
    };
    errors.output_message = [](j_common_ptr) {};
    cinfo.client_data = this;
  }
  ~JpegEncoder() { jpeg_destroy_compress(&cinfo); }
  JpegEncoder(const JpegEncoder&) = delete;
  JpegEncoder& operator=(const JpegEncoder&) = delete;

  bool compress(const Pixels& pixels, int quality) {
    if (setjmp(jump)) return false;
    jpeg_create_compress(&cinfo);
    jpeg_mem_dest(&cinfo, &data, &size);
    cinfo.image_width = static_cast<JDIMENSION>(pixels.width);
    cinfo.image_height = static_cast<JDIMENSION>(pixels.height);
    cinfo.input_components = pixels.channels;
    cinfo.in_color_space = pixels.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&cinfo);  // sets YCbCr 4:2:0
    jpeg_set_quality(&cinfo, quality, TRUE);
    jpeg_start_compress(&cinfo, TRUE);
    while (cinfo.next_scanline < cinfo.image_height) {
      auto* row = const_cast<JSAMPROW>(pixels.row(static_cast<int>(cinfo.next_scanline)));
      jpeg_write_scanlines(&cinfo, &row, 1);
    }
    jpeg_finish_compress(&cinfo);
    return true;
  }
};

}  // namespace

Bytes encode_jpeg(const Pixels& pixels, int quality) {
  JpegEncoder encoder;
  if (encoder.compress(pixels, quality)) return Bytes(encoder.data, encoder.size);
  // libjpeg owns `data` until it ends, and the pointer may be out of date. The memory is lost.
  if (encoder.errors.msg_code == JERR_OUT_OF_MEMORY) throw std::bad_alloc();
  return {};
}

}  // namespace opgate::codecs

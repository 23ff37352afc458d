// An error of libpng ends in a longjmp to compress(). No frame between the two has a destructor.
#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <new>

#include <png.h>

#include "images/codecs/encoder.h"

namespace opgate::codecs {
namespace {

/// Faster than zlib's default level, which is 6. Pictures with drawings in them become hardly larger.
constexpr int kCompressionLevel = 3;

struct PngEncoder {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::jmp_buf jump{};
  std::uint8_t* data = nullptr;
  std::size_t size = 0;
  std::size_t capacity = 0;
  bool out_of_memory = false;

  PngEncoder() = default;
  ~PngEncoder() { png_destroy_write_struct(&png, &info); }
  PngEncoder(const PngEncoder&) = delete;
  PngEncoder& operator=(const PngEncoder&) = delete;

  bool compress(const Pixels& pixels) {
    if (setjmp(jump)) return false;
    png = png_create_write_struct_2(PNG_LIBPNG_VER_STRING, this, &on_error, &on_warning, this, &allocate, &release);
    if (!png) return false;
    info = png_create_info_struct(png);
    if (!info) return false;
    png_set_write_fn(png, this, &write_bytes, [](png_structp) {});
    png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_IHDR(png, info, static_cast<png_uint_32>(pixels.width), static_cast<png_uint_32>(pixels.height), 8,
                 pixels.channels == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_set_compression_level(png, kCompressionLevel);
    png_write_info(png, info);
    for (int y = 0; y < pixels.height; ++y) png_write_row(png, pixels.row(y));
    png_write_end(png, info);
    return true;
  }

  static void on_error(png_structp png, png_const_charp) {
    std::longjmp(static_cast<PngEncoder*>(png_get_error_ptr(png))->jump, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}

  static void write_bytes(png_structp png, png_bytep bytes, std::size_t count) {
    auto& self = *static_cast<PngEncoder*>(png_get_io_ptr(png));
    if (self.capacity - self.size < count) {
      const std::size_t grown = std::max<std::size_t>(2 * self.capacity, self.size + count + 65536);
      auto* moved = static_cast<std::uint8_t*>(std::realloc(self.data, grown));
      self.out_of_memory = !moved;
      if (!moved) png_error(png, "out of memory");
      self.data = moved;
      self.capacity = grown;
    }
    std::memcpy(self.data + self.size, bytes, count);
    self.size += count;
  }

  static png_voidp allocate(png_structp png, png_alloc_size_t bytes) {
    void* memory = std::malloc(bytes);
    if (!memory) static_cast<PngEncoder*>(png_get_mem_ptr(png))->out_of_memory = true;
    return memory;
  }
  static void release(png_structp, png_voidp memory) { std::free(memory); }
};

}  // namespace

Bytes encode_png(const Pixels& pixels) {
  PngEncoder encoder;
  const bool good = encoder.compress(pixels);
  Bytes bytes(encoder.data, encoder.size);
  if (good) return bytes;
  if (encoder.out_of_memory) throw std::bad_alloc();
  return {};
}

}  // namespace opgate::codecs

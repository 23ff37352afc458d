// A PNG is a few chunks around a zlib stream. libdeflate makes the stream: it is faster than zlib and compresses
// better.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include <libdeflate.h>

#include "images/codecs/encoder.h"

namespace opgate::codecs {
namespace {

/// libdeflate's fastest. Higher ones take half as long again and save a few percent of a photograph.
constexpr int kCompressionLevel = 1;

/// The most bytes of a chunk. The standard allows 2^31 - 1.
constexpr std::size_t kMostInChunk = std::size_t{1} << 30;

/// A chunk's length, type and checksum.
constexpr std::size_t kChunkOverhead = 12;

/// What is stored in place of a byte: the byte minus one that the decoder knows. The numbers are those of the standard.
enum Filter : std::uint8_t { kNone = 0, kLeft = 1, kAbove = 2, kPaeth = 4 };

/// Writes filtered bytes of a row. `left` is the distance in bytes to the pixel on the left. The loops have no
/// branches, so that the compiler vectorizes them.
template <Filter filter>
void apply(const std::uint8_t* row, const std::uint8_t* above, std::size_t count, std::size_t left, std::uint8_t* out) {
  if constexpr (filter == kNone) std::copy_n(row, count, out);
  if constexpr (filter == kLeft) {
    std::copy_n(row, left, out);
    for (std::size_t i = left; i < count; ++i) out[i] = static_cast<std::uint8_t>(row[i] - row[i - left]);
  }
  if constexpr (filter == kAbove) {
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::uint8_t>(row[i] - above[i]);
  }
  if constexpr (filter == kPaeth) {
    for (std::size_t i = 0; i < left; ++i) out[i] = static_cast<std::uint8_t>(row[i] - above[i]);
    for (std::size_t i = left; i < count; ++i) {
      // Whichever of a, b and c is nearest to a + b - c.
      const auto a = static_cast<std::int16_t>(row[i - left]), b = static_cast<std::int16_t>(above[i]),
                 c = static_cast<std::int16_t>(above[i - left]);
      const auto to_a = static_cast<std::int16_t>(b - c), to_b = static_cast<std::int16_t>(a - c);
      const auto to_c = static_cast<std::int16_t>(to_a + to_b);
      const auto size_of = [](std::int16_t n) { return static_cast<std::int16_t>(n < 0 ? -n : n); };
      const bool first = size_of(to_a) <= size_of(to_b) && size_of(to_a) <= size_of(to_c);
      const std::int16_t nearest = first ? a : size_of(to_b) <= size_of(to_c) ? b : c;
      out[i] = static_cast<std::uint8_t>(row[i] - nearest);
    }
  }
}

/// How badly bytes may compress: the sum of their distances from 0. libpng chooses filters by it too.
std::uint64_t badness(const std::uint8_t* bytes, std::size_t count) {
  constexpr std::size_t kBlock = 4096;  // a block's sum fits 32 bits
  std::uint64_t sum = 0;
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    std::uint32_t block = 0;
    for (std::size_t i = begin; i < std::min(begin + kBlock, count); ++i) {
      block += bytes[i] < 128 ? bytes[i] : 256u - bytes[i];
    }
    sum += block;
  }
  return sum;
}

/// Filters all rows. Each begins with the number of its filter.
std::vector<std::uint8_t> filtered(const Pixels& pixels) {
  const auto channels = static_cast<std::size_t>(pixels.channels);
  const std::size_t count = static_cast<std::size_t>(pixels.width) * channels;
  std::vector<std::uint8_t> all((count + 1) * static_cast<std::size_t>(pixels.height));
  std::vector<std::uint8_t> above(count), tried(count);
  const std::uint8_t* previous = above.data();
  std::uint8_t* out = all.data();
  for (int y = 0; y < pixels.height; ++y, out += count + 1) {
    const std::uint8_t* const row = pixels.row(y);
    std::uint64_t best = std::numeric_limits<std::uint64_t>::max();
    const auto attempt = [&]<Filter filter>() {
      apply<filter>(row, previous, count, channels, tried.data());
      const std::uint64_t found = badness(tried.data(), count);
      if (found >= best) return;
      best = found;
      out[0] = filter;
      std::copy_n(tried.data(), count, out + 1);
    };
    attempt.template operator()<kPaeth>();
    attempt.template operator()<kAbove>();
    attempt.template operator()<kLeft>();
    attempt.template operator()<kNone>();
    previous = row;
  }
  return all;
}

std::uint8_t* put(std::uint8_t* out, std::uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) *out++ = static_cast<std::uint8_t>(number >> shift);
  return out;
}

/// Writes a chunk and returns its end.
std::uint8_t* put_chunk(std::uint8_t* out, const char* type, const std::uint8_t* data, std::size_t size) {
  out = put(out, static_cast<std::uint32_t>(size));
  std::uint8_t* const begin = out;
  std::memcpy(out, type, 4);
  if (size) std::memmove(out + 4, data, size);  // the data may overlap its place
  out += 4 + size;
  return put(out, libdeflate_crc32(0, begin, 4 + size));
}

struct FreeCompressor {
  void operator()(libdeflate_compressor* compressor) const { libdeflate_free_compressor(compressor); }
};

}  // namespace

Bytes encode_png(const Pixels& pixels) {
  constexpr std::array<std::uint8_t, 8> kSignature = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  constexpr std::size_t kHeader = 13;
  const std::unique_ptr<libdeflate_compressor, FreeCompressor> compressor(
      libdeflate_alloc_compressor(kCompressionLevel));
  if (!compressor) throw std::bad_alloc();
  const std::vector<std::uint8_t> rows = filtered(pixels);
  const std::size_t bound = libdeflate_zlib_compress_bound(compressor.get(), rows.size());
  const std::size_t before = kSignature.size() + kChunkOverhead + kHeader;
  const std::size_t overhead = (bound / kMostInChunk + 1) * kChunkOverhead;  // of the IDAT chunks
  auto* const file = static_cast<std::uint8_t*>(std::malloc(before + overhead + bound + kChunkOverhead));
  if (!file) throw std::bad_alloc();

  std::uint8_t* out = std::copy(kSignature.begin(), kSignature.end(), file);
  std::array<std::uint8_t, kHeader> header{};
  put(put(header.data(), static_cast<std::uint32_t>(pixels.width)), static_cast<std::uint32_t>(pixels.height));
  header[8] = 8;                             // bits of a channel
  header[9] = pixels.channels == 1 ? 0 : 2;  // grey or RGB
  out = put_chunk(out, "IHDR", header.data(), header.size());
  // The stream is written so far behind its place that no chunk, moved to its place, overwrites a later one.
  std::uint8_t* const stream = out + overhead;
  const std::size_t size = libdeflate_zlib_compress(compressor.get(), rows.data(), rows.size(), stream, bound);
  for (std::size_t begin = 0; begin < size; begin += kMostInChunk) {
    out = put_chunk(out, "IDAT", stream + begin, std::min(kMostInChunk, size - begin));
  }
  out = put_chunk(out, "IEND", nullptr, 0);
  return Bytes(file, size == 0 ? 0 : static_cast<std::size_t>(out - file));
}

}  // namespace opgate::codecs

// A pixel looks for the first row whose tag covers it, or else whose outline does: the CPU paints rows from the last to
// the first, and all tags after all outlines.
#include "draw_bounding_boxes.h"

#include <cstring>

#include "checks.h"
#include "core/elementwise.cuh"
#include "formula.h"

namespace opgate::ops {
namespace {

using namespace drawing;

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kTileWidth = 32;
constexpr int kTileHeight = kThreads / kTileWidth;
constexpr unsigned kWholeWarp = 0xffffffffu;

/// Digits of a label, a space and a percentage.
constexpr int kMostOwnLetters = 16;

struct Rows {
  const float *boxes, *scores;         ///< scores or null
  const std::int32_t *labels, *count;  ///< or null
  std::int64_t k;
  const std::int32_t* name_ends;  ///< in `letters`, for each of the names
  const char* letters;
  std::int64_t names;
};

/// What is drawn of a row.
struct Shown {
  Rectangle box, tag;  ///< empty where not drawn
  std::int32_t colour;
  std::int32_t name_begin, name_end;  ///< in the names' letters, which come first
  std::int32_t own_letters;           ///< how many come then
  char own[kMostOwnLetters];
};

__device__ bool covers(const Rectangle& r, std::int64_t x, std::int64_t y) {
  return x >= r.left && x < r.right && y >= r.top && y < r.bottom;
}

__device__ bool meets(const Rectangle& a, const Rectangle& b) {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}

/// Appends a number's digits.
__device__ void append(Shown& shown, std::uint32_t number) {
  char digits[10];
  int count = 0;
  do {
    digits[count++] = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number);
  while (count) shown.own[shown.own_letters++] = digits[--count];
}

__global__ void __launch_bounds__(kThreads)
    prepare(Rows rows, PictureSize picture, std::int64_t thickness, Shown* all) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows.k) return;
  Shown shown{};
  const std::int32_t label = rows.labels ? rows.labels[i] : 0;
  if (!(rows.count && i >= *rows.count) && label >= 0 &&
      rectangle_of(rows.boxes + 4 * i, picture, thickness, shown.box)) {
    shown.colour = label % kColours;
    if (rows.labels && label < rows.names) {
      shown.name_begin = label ? rows.name_ends[label - 1] : 0;
      shown.name_end = rows.name_ends[label];
    } else if (rows.labels) {
      append(shown, static_cast<std::uint32_t>(label));
    }
    const std::int32_t name = shown.name_end - shown.name_begin;
    if (rows.scores && !std::isnan(rows.scores[i])) {
      if (name + shown.own_letters > 0) shown.own[shown.own_letters++] = ' ';
      append(shown, static_cast<std::uint32_t>(percent_of(rows.scores[i])));
      shown.own[shown.own_letters++] = '%';
    }
    const std::int64_t letters = std::int64_t{name} + shown.own_letters;
    if (letters > 0) shown.tag = tag_of(shown.box, letters, text_scale(thickness), picture);
  } else {
    shown.box = {};
  }
  all[i] = shown;
}

/// What a kernel's parameters carry to the device.
struct Tables {
  std::uint8_t palette[kColours][3];
  std::uint8_t font[kLastGlyph - kFirstGlyph + 1][kGlyphHeight];
};

/// Whether a letter of the tag has ink at a pixel that the tag covers.
__device__ bool has_ink(const Shown& shown, const Tables& tables, const char* letters, std::int64_t scale,
                        std::int64_t x, std::int64_t y) {
  const std::int64_t across = (x - shown.tag.left) / scale - 2, row = (y - shown.tag.top) / scale - 1;
  if (across < 0 || row < 0 || row >= kGlyphHeight) return false;
  const std::int64_t place = across / (kGlyphWidth + 1), column = across % (kGlyphWidth + 1);
  const std::int64_t name = shown.name_end - shown.name_begin;
  if (column == kGlyphWidth || place >= name + shown.own_letters) return false;
  const char letter = place < name ? letters[shown.name_begin + place] : shown.own[place - name];
  return tables.font[letter - kFirstGlyph][row] >> (kGlyphWidth - 1 - column) & 1;
}

/// A block paints tiles one below the other. Its threads look together at as many rows as they are, for which of them
/// meet the tile, and a pixel looks only at those.
__global__ void __launch_bounds__(kThreads)
    paint(const Shown* all, std::int64_t k, PictureSize picture, std::int64_t thickness, Tables tables,
          const char* letters, std::uint8_t* drawn) {
  __shared__ unsigned met[kThreads / kWarp];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t left = static_cast<std::int64_t>(blockIdx.x) * kTileWidth, x = left + thread % kTileWidth;
  for (std::int64_t top = static_cast<std::int64_t>(blockIdx.y) * kTileHeight; top < picture.height;
       top += static_cast<std::int64_t>(gridDim.y) * kTileHeight) {
    const std::int64_t y = top + thread / kTileWidth;
    const Rectangle tile{left, top, left + kTileWidth, top + kTileHeight};
    std::int64_t tagged = -1, outlined = -1;  // the first rows
    for (std::int64_t first = 0; first < k; first += kThreads) {
      const std::int64_t own = first + thread;
      const bool meeting = own < k && (meets(all[own].box, tile) || meets(all[own].tag, tile));
      const unsigned mask = __ballot_sync(kWholeWarp, meeting);
      __syncthreads();  // all have looked at the masks before
      if (thread % kWarp == 0) met[thread / kWarp] = mask;
      __syncthreads();
      for (int warp = 0; warp < kThreads / kWarp && tagged < 0; ++warp) {
        for (unsigned left_over = met[warp]; left_over && tagged < 0; left_over &= left_over - 1) {
          const std::int64_t i = first + warp * kWarp + __ffs(static_cast<int>(left_over)) - 1;
          if (covers(all[i].tag, x, y)) tagged = i;
          const Rectangle& r = all[i].box;
          const Rectangle inner{r.left + thickness, r.top + thickness, r.right - thickness, r.bottom - thickness};
          if (outlined < 0 && covers(r, x, y) && !covers(inner, x, y)) outlined = i;
        }
      }
    }
    const std::int64_t i = tagged >= 0 ? tagged : outlined;
    if (i < 0 || x >= picture.width || y >= picture.height) continue;
    const std::uint8_t* const colour = tables.palette[all[i].colour];
    const bool ink = tagged >= 0 && has_ink(all[i], tables, letters, text_scale(thickness), x, y);
    for (int c = 0; c < 3; ++c) {
      drawn[3 * (y * picture.width + x) + c] = !ink ? colour[c] : is_light(colour) ? 0 : 255;
    }
  }
}

/// Bytes that travel as a kernel's parameter: the host's memory need not outlive the call, and nobody waits.
struct Chunk {
  char bytes[2048];
};

__global__ void __launch_bounds__(kThreads) store(Chunk chunk, int count, char* to) {
  for (int i = threadIdx.x; i < count; i += kThreads) to[i] = chunk.bytes[i];
}

Status upload(std::string_view bytes, char* to, cudaStream_t stream) {
  for (std::size_t begin = 0; begin < bytes.size(); begin += sizeof(Chunk)) {
    Chunk chunk;
    const std::size_t count = std::min(bytes.size() - begin, sizeof(Chunk));
    std::memcpy(chunk.bytes, bytes.data() + begin, count);
    store<<<1, kThreads, 0, stream>>>(chunk, static_cast<int>(count), to + begin);
    OPGATE_RETURN_IF_ERROR(launched());
  }
  return {};
}

struct DrawBoundingBoxesCuda {
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const PictureSize picture{in.size("w"), in.size("h")};
    std::int64_t thickness = 0;
    OPGATE_RETURN_IF_ERROR(read_thickness(attributes, picture.height, picture.width, thickness));
    const Tensor& image = in["image"];
    auto* const drawn = out["drawn"].data<std::uint8_t>();
    if (image.size() == 0) return {};
    const cudaStream_t stream = stream_of(context);
    if (drawn != image.raw()) {
      OPGATE_RETURN_IF_ERROR(cuda::copy(drawn, image.raw(), static_cast<std::size_t>(image.size()), stream));
    }
    Rows rows{in["boxes"].data<const float>(),
              in.has("scores") ? in["scores"].data<const float>() : nullptr,
              in.has("labels") ? in["labels"].data<const std::int32_t>() : nullptr,
              in.has("count") ? in["count"].data<const std::int32_t>() : nullptr,
              in.size("k"),
              nullptr,
              nullptr,
              0};
    if (rows.k == 0) return {};
    OPGATE_RETURN_IF_ERROR(upload_names(context, writable_names(attributes), rows));
    auto* const shown = context.scratch<Shown>(rows.k).data();
    prepare<<<blocks_for(rows.k, kThreads), kThreads, 0, stream>>>(rows, picture, thickness, shown);
    OPGATE_RETURN_IF_ERROR(launched());
    Tables tables;
    std::memcpy(tables.palette, kPalette, sizeof tables.palette);
    std::memcpy(tables.font, kFont, sizeof tables.font);
    constexpr unsigned kMostDown = 65535;
    const dim3 grid(blocks_for(picture.width, kTileWidth),
                    std::min(blocks_for(picture.height, kTileHeight), kMostDown));
    paint<<<grid, kThreads, 0, stream>>>(shown, rows.k, picture, thickness, tables, rows.letters, drawn);
    return launched();
  }

 private:
  static Status upload_names(Context& context, const std::vector<std::string>& names, Rows& rows) {
    if (names.empty()) return {};
    std::string bytes, letters;
    for (const std::string& name : names) {
      letters += name;
      const auto end = static_cast<std::int32_t>(letters.size());
      bytes.append(reinterpret_cast<const char*>(&end), sizeof end);
    }
    const std::size_t ends = bytes.size();
    bytes += letters;
    char* const memory = context.scratch<char>(static_cast<std::int64_t>(bytes.size())).data();
    rows.names = static_cast<std::int64_t>(names.size());
    rows.name_ends = reinterpret_cast<const std::int32_t*>(memory);
    rows.letters = memory + ends;
    return upload(bytes, memory, stream_of(context));
  }
};

}  // namespace
}  // namespace opgate::ops

OPGATE_CUDA_KERNEL(DrawBoundingBoxes, opgate::ops::DrawBoundingBoxesCuda)

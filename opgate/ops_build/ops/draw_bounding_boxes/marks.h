// Marks, for every device. The mark of a box is its outline and its tag: their pixels, and the text of the tag.
//
// A kernel first computes the mark of each row. Then it paints the picture region by region: bands of rows on the CPU,
// tiles on a GPU. In a region it paints the outlines from the last row to the first, and then the tags in the same
// order.
#pragma once

#include <cmath>
#include <cstdint>

#include "signature/dtype.h"

namespace opgate::ops::draw_bounding_boxes {

inline constexpr int kGlyphWidth = 5;
inline constexpr int kGlyphHeight = 8;
inline constexpr char kFirstGlyph = ' ';
inline constexpr char kLastGlyph = '~';
inline constexpr int kColours = 16;

struct Colour {
  std::uint8_t rgb[3];
};

/// The font and the colours of the labels.
struct Tables {
  std::uint8_t font[kLastGlyph - kFirstGlyph + 1][kGlyphHeight];
  Colour palette[kColours];

  /// A row of pixels of a letter. The leftmost pixel is bit kGlyphWidth - 1.
  OPGATE_HOST_DEVICE constexpr unsigned glyph_row(char letter, std::int64_t row) const {
    return font[letter - kFirstGlyph][row];
  }
};

// clang-format off
inline constexpr Tables kTables = {{
#include "font.inc"
}, {
#include "palette.inc"
}};
// clang-format on

/// The colour of letters: black on light colours, white on dark ones.
OPGATE_HOST_DEVICE inline Colour ink_on(const Colour& colour) {
  const bool light = 299 * colour.rgb[0] + 587 * colour.rgb[1] + 114 * colour.rgb[2] >= 128000;
  const std::uint8_t value = light ? 0 : 255;
  return {{value, value, value}};
}

/// A rectangle in whole pixels. `right` and `bottom` are the first pixels outside.
struct Rectangle {
  std::int64_t left, top, right, bottom;
};

struct PictureSize {
  std::int64_t width, height;
};

/// The inputs of a call. Absent inputs are null.
struct Rows {
  const float *boxes, *scores;
  const std::int32_t *labels, *count;
  std::int64_t k;
  const char* letters;            ///< of all names
  const std::int32_t* name_ends;  ///< where each name ends in `letters`
  std::int64_t names;
  PictureSize picture;
  std::int64_t thickness;

  /// The side of a pixel of the font, in pixels of the picture.
  OPGATE_HOST_DEVICE std::int64_t scale() const { return (thickness + 1) / 2; }
};

/// What to paint for a row: nothing if the box is empty, no tag if the tag is empty.
struct Mark {
  static constexpr int kMostOwn = 16;  ///< the digits of a label, a space and a percentage

  Rectangle box, tag;
  std::int32_t colour;                ///< index in the palette
  std::int32_t name_begin, name_end;  ///< the name in the tag, in the letters of all names
  std::int32_t own_count;
  char own[kMostOwn];  ///< the text after the name

  OPGATE_HOST_DEVICE std::int64_t letters() const { return std::int64_t{name_end} - name_begin + own_count; }

  /// Letter i of the tag.
  OPGATE_HOST_DEVICE char letter(const Rows& rows, std::int64_t i) const {
    const std::int64_t name = std::int64_t{name_end} - name_begin;
    return i < name ? rows.letters[name_begin + i] : own[i - name];
  }

  OPGATE_HOST_DEVICE void append(char letter) { own[own_count++] = letter; }

  OPGATE_HOST_DEVICE void append_number(std::uint32_t number) {
    char digits[10];
    int count = 0;
    do {
      digits[count++] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number);
    while (count) append(digits[--count]);
  }
};

OPGATE_HOST_DEVICE inline std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
OPGATE_HOST_DEVICE inline std::int64_t most(std::int64_t a, std::int64_t b) { return a < b ? b : a; }

/// The thickness of outlines that an attribute states. With 0 it is round(shorter side / 200), at least 2.
OPGATE_HOST_DEVICE inline std::int64_t thickness_of(std::int64_t stated, const PictureSize& picture) {
  return stated ? stated : most((least(picture.width, picture.height) + 100) / 200, 2);
}

/// A coordinate in whole pixels. It is limited to where an outline can still be seen, which keeps the integers small.
OPGATE_HOST_DEVICE inline std::int64_t pixel_of(float value, std::int64_t size, std::int64_t thickness) {
  const auto limit = static_cast<double>(size + thickness);
  const double rounded = std::floor(static_cast<double>(value) + 0.5);
  return static_cast<std::int64_t>(rounded < -limit ? -limit : rounded > limit ? limit : rounded);
}

/// Sets the pixels of a box. Returns false if it is not finite, upside down or outside of the picture.
OPGATE_HOST_DEVICE inline bool place_box(const float* box, const PictureSize& picture, std::int64_t thickness,
                                         Rectangle& r) {
  for (int i = 0; i < 4; ++i) {
    if (!std::isfinite(box[i])) return false;
  }
  if (box[2] < box[0] || box[3] < box[1]) return false;
  r.left = pixel_of(box[0], picture.width, thickness);
  r.top = pixel_of(box[1], picture.height, thickness);
  r.right = most(pixel_of(box[2], picture.width, thickness), r.left + 1);
  r.bottom = most(pixel_of(box[3], picture.height, thickness), r.top + 1);
  return r.left < picture.width && r.top < picture.height && r.right > 0 && r.bottom > 0;
}

/// The tag is above the box, or inside it if there is no room above. It is within the picture if it fits.
OPGATE_HOST_DEVICE inline Rectangle place_tag(const Rectangle& box, std::int64_t letters, std::int64_t scale,
                                              const PictureSize& picture) {
  const std::int64_t width = (letters * (kGlyphWidth + 1) - 1) * scale + 4 * scale;
  const std::int64_t height = (kGlyphHeight + 2) * scale;
  const std::int64_t wanted = box.top - height >= 0 ? box.top - height : box.top;
  const std::int64_t left = most(least(box.left, picture.width - width), 0);
  const std::int64_t top = most(least(wanted, picture.height - height), 0);
  return {left, top, left + width, top + height};
}

OPGATE_HOST_DEVICE inline Mark mark_of(const Rows& rows, std::int64_t i) {
  Mark mark{};
  const std::int32_t label = rows.labels ? rows.labels[i] : 0;
  if ((rows.count && i >= *rows.count) || label < 0) return mark;
  if (!place_box(rows.boxes + 4 * i, rows.picture, rows.thickness, mark.box)) return Mark{};
  mark.colour = label % kColours;
  if (rows.labels && label < rows.names) {
    mark.name_begin = label ? rows.name_ends[label - 1] : 0;
    mark.name_end = rows.name_ends[label];
  } else if (rows.labels) {
    mark.append_number(static_cast<std::uint32_t>(label));
  }
  if (rows.scores && !std::isnan(rows.scores[i])) {
    const double score = rows.scores[i] < 0 ? 0 : rows.scores[i] > 1 ? 1 : rows.scores[i];
    if (mark.letters() > 0) mark.append(' ');
    mark.append_number(static_cast<std::uint32_t>(std::floor(100 * score + 0.5)));
    mark.append('%');
  }
  if (mark.letters() > 0) mark.tag = place_tag(mark.box, mark.letters(), rows.scale(), rows.picture);
  return mark;
}

}  // namespace opgate::ops::draw_bounding_boxes

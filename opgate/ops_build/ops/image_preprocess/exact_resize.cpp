#include "exact_resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "passes.h"

namespace opgate::ops::image_preprocess {
namespace {

using codecs::DecodeStatus;

std::size_t length_of(const UprightRows& source, int pixels) {
  return static_cast<std::size_t>(pixels) * static_cast<std::size_t>(source.channels());
}

/// Makes each row of the result from some neighbouring rows. `keep(row, to)` turns a row of the source into the
/// `length` values that are kept of it, `kept_rows` rows at a time. `make(rows, y, to)` makes row y of the result from
/// the rows first_of(y) .. last_of(y), which are rows(first_of(y)) and so on.
template <typename Kept, typename FirstRow, typename LastRow, typename Keep, typename Make>
DecodeStatus by_rows(UprightRows& source, int kept_rows, std::size_t length, const Part& columns, const Part& rows,
                     FirstRow first_of, LastRow last_of, const Keep& keep, const Make& make, std::uint8_t* out) {
  const std::size_t pitch = length + UprightRows::kSlack;
  std::vector<Kept> kept(pitch * static_cast<std::size_t>(kept_rows));  // source row y is row y % kept_rows
  const auto at = [&](int y) { return kept.data() + pitch * static_cast<std::size_t>(y % kept_rows); };
  int next = 0;
  for (int y = 0; y < rows.count; ++y, out += length_of(source, columns.count)) {
    for (next = std::max(next, first_of(y)); next <= last_of(y); ++next) {
      const std::uint8_t* row = source.row(next);
      if (!row) return source.status();
      keep(row, at(next));
    }
    make(at, y, out);
  }
  return DecodeStatus::good;
}

template <int bits, typename Resized>
void filter_row(const std::uint8_t* row, int channels, const FilterTable& table, Resized* to) {
  if (channels == 3) {
    filter_pixels<bits>(row, table, to);
  } else {
    filter_values<bits>(row, table, to);
  }
}

/// The horizontal pass, then the vertical one, which `Sum` adds up.
template <typename Resized, typename Sum, int bits>
DecodeStatus horizontal_first(UprightRows& source, const FilterTable& across, const FilterTable& down,
                              const Part& columns, const Part& rows, std::uint8_t* out) {
  const std::size_t length = length_of(source, columns.count);
  std::vector<const Resized*> taps(static_cast<std::size_t>(down.most()));
  const auto combine = [&](const auto& at, int y, std::uint8_t* to) {
    const int count = down.count(y);
    for (int k = 0; k < count; ++k) taps[static_cast<std::size_t>(k)] = at(down.first(y) + k);
    combine_rows<Sum>(taps.data(), down, y, length, to);
  };
  return by_rows<Resized>(
      source, down.most(), length, columns, rows, [&](int y) { return down.first(y); },
      [&](int y) { return down.last(y); },
      [&](const std::uint8_t* row, Resized* to) { filter_row<bits>(row, source.channels(), across, to); }, combine,
      out);
}

DecodeStatus vertical_first(UprightRows& source, const FilterTable& across, const FilterTable& down,
                            const Part& columns, const Part& rows, std::uint8_t* out) {
  const std::size_t begin = length_of(source, across.first(0));  // the horizontal pass needs no value before it
  const std::size_t length = length_of(source, across.last(across.size() - 1) + 1) - begin;
  std::vector<const std::uint8_t*> taps(static_cast<std::size_t>(down.most()));
  std::vector<std::uint8_t> combined(begin + length + UprightRows::kSlack);
  const auto make = [&](const auto& at, int y, std::uint8_t* to) {
    const int count = down.count(y);
    for (int k = 0; k < count; ++k) taps[static_cast<std::size_t>(k)] = at(down.first(y) + k);
    combine_rows<std::int32_t>(taps.data(), down, y, length, combined.data() + begin);
    filter_row<kWeightBits>(combined.data(), source.channels(), across, to);
  };
  return by_rows<std::uint8_t>(
      source, down.most(), length, columns, rows, [&](int y) { return down.first(y); },
      [&](int y) { return down.last(y); },
      [&](const std::uint8_t* row, std::uint8_t* to) { std::memcpy(to, row + begin, length); }, make, out);
}

DecodeStatus pillow(UprightRows& source, Filter filter, const Part& columns, const Part& rows, std::uint8_t* out) {
  const int narrower = source.width() - columns.whole, shorter = source.height() - rows.whole;
  const FilterTable across = pillow_taps(filter, source.width(), columns);
  const FilterTable down = pillow_taps(filter, source.height(), rows);
  // Pillow 13 has this rule. Earlier versions begin with the horizontal pass always.
  if (shorter > 0 && shorter > 2 * narrower) return vertical_first(source, across, down, columns, rows, out);
  return horizontal_first<std::uint8_t, std::int32_t, kWeightBits>(source, across, down, columns, rows, out);
}

template <typename Sum>
DecodeStatus opencv(UprightRows& source, Filter filter, const Part& columns, const Part& rows, std::uint8_t* out) {
  return horizontal_first<std::int32_t, Sum, 0>(source, opencv_taps(filter, source.width(), columns),
                                                opencv_taps(filter, source.height(), rows), columns, rows, out);
}

/// OpenCV's INTER_LINEAR, and its INTER_AREA where it enlarges. Between the passes the values have 15 bits.
DecodeStatus linear(UprightRows& source, bool enlarging_area, const Part& columns, const Part& rows,
                    std::uint8_t* out) {
  const FilterTable across = opencv_linear_columns(source.width(), columns, enlarging_area);
  const std::vector<LinearTap> down = opencv_linear_rows(source.height(), rows, enlarging_area);
  const std::size_t length = length_of(source, columns.count);
  const auto tap = [&](int y) -> const LinearTap& { return down[static_cast<std::size_t>(y)]; };
  return by_rows<std::int16_t>(
      source, 2, length, columns, rows, [&](int y) { return tap(y).first; }, [&](int y) { return tap(y).second; },
      [&](const std::uint8_t* row, std::int16_t* to) { filter_row<0>(row, source.channels(), across, to); },
      [&](const auto& at, int y, std::uint8_t* to) {
        blend_linear(at(tap(y).first), at(tap(y).second), tap(y).weight, length, to);
      },
      out);
}

DecodeStatus nearest(UprightRows& source, const std::vector<int>& across, const std::vector<int>& down,
                     std::uint8_t* out) {
  const std::size_t length = across.size() * static_cast<std::size_t>(source.channels());
  const auto channels = static_cast<std::size_t>(source.channels());
  for (std::size_t y = 0; y < down.size(); ++y, out += length) {
    if (y > 0 && down[y] == down[y - 1]) {
      std::memcpy(out, out - length, length);
      continue;
    }
    const std::uint8_t* row = source.row(down[y]);
    if (!row) return source.status();
    std::uint8_t* to = out;
    for (const int x : across) {
      for (std::size_t c = 0; c < channels; ++c) *to++ = row[channels * static_cast<std::size_t>(x) + c];
    }
  }
  return DecodeStatus::good;
}

/// INTER_AREA where both sides shrink, and not by whole factors.
DecodeStatus area(UprightRows& source, const std::vector<std::vector<AreaTap>>& across,
                  const std::vector<std::vector<AreaTap>>& down, std::uint8_t* out) {
  const std::size_t length = across.size() * static_cast<std::size_t>(source.channels());
  std::vector<float> resized(length), sum(length);
  int done = -1;  // the source row that `resized` was made of
  for (const std::vector<AreaTap>& taps : down) {
    std::ranges::fill(sum, 0.0f);
    for (const AreaTap& tap : taps) {
      if (tap.source != done) {
        const std::uint8_t* row = source.row(tap.source);
        if (!row) return source.status();
        source.channels() == 3 ? area_row<3>(row, across, resized.data()) : area_row<1>(row, across, resized.data());
        done = tap.source;
      }
      add_weighted(resized.data(), tap.weight, length, sum.data());
    }
    for (std::size_t i = 0; i < length; ++i) out[i] = rounded_byte(sum[i]);
    out += length;
  }
  return DecodeStatus::good;
}

/// INTER_AREA where the sides shrink by the whole factors `across` and `down`: means of blocks.
DecodeStatus block_area(UprightRows& source, int across, int down, const Part& columns, const Part& rows,
                        std::uint8_t* out) {
  const int channels = source.channels();
  const std::size_t length = length_of(source, columns.count);
  std::vector<std::int32_t> sums(length);
  const float share = 1.0f / static_cast<float>(across * down);
  for (int y = rows.first; y < rows.first + rows.count; ++y, out += length) {
    std::ranges::fill(sums, 0);
    for (int i = 0; i < down; ++i) {
      const std::uint8_t* row = source.row(y * down + i);
      if (!row) return source.status();
      add_blocks(row + static_cast<std::ptrdiff_t>(columns.first) * across * channels, across, channels, sums);
    }
    if (across == 2 && down == 2) {  // OpenCV rounds these another way
      for (std::size_t i = 0; i < length; ++i) out[i] = static_cast<std::uint8_t>((sums[i] + 2) >> 2);
    } else {
      for (std::size_t i = 0; i < length; ++i) out[i] = rounded_byte(static_cast<float>(sums[i]) * share);
    }
  }
  return DecodeStatus::good;
}

/// The whole factor by which a side shrinks, or 0.
int whole_factor(double scale) {
  const double factor = std::nearbyint(scale);
  return std::fabs(scale - factor) < std::numeric_limits<double>::epsilon() ? static_cast<int>(factor) : 0;
}

DecodeStatus opencv_linear_or_area(UprightRows& source, Filter filter, const Part& columns, const Part& rows,
                                   std::uint8_t* out) {
  const int width = source.width(), height = source.height();
  const double scale_x = opencv_scale(width, columns.whole), scale_y = opencv_scale(height, rows.whole);
  const int across = whole_factor(scale_x), down = whole_factor(scale_y);
  if (filter == Filter::cv_area && scale_x >= 1 && scale_y >= 1) {
    if (across > 0 && down > 0) return block_area(source, across, down, columns, rows, out);
    return area(source, opencv_area_taps(width, columns), opencv_area_taps(height, rows), out);
  }
  if (filter == Filter::cv_linear && across == 2 && down == 2) return block_area(source, 2, 2, columns, rows, out);
  return linear(source, filter == Filter::cv_area, columns, rows, out);
}

DecodeStatus copy(UprightRows& source, const Part& columns, const Part& rows, std::uint8_t* out) {
  const std::size_t length = length_of(source, columns.count);
  for (int y = rows.first; y < rows.first + rows.count; ++y, out += length) {
    const std::uint8_t* row = source.row(y);
    if (!row) return source.status();
    std::memcpy(out, row + static_cast<std::ptrdiff_t>(columns.first) * source.channels(), length);
  }
  return DecodeStatus::good;
}

}  // namespace

DecodeStatus exact_resize(UprightRows& source, Filter filter, const Part& columns, const Part& rows,
                          std::uint8_t* out) {
  const int width = source.width(), height = source.height();
  if (width == columns.whole && height == rows.whole) return copy(source, columns, rows, out);
  switch (filter) {
    case Filter::pil_nearest: return nearest(source, pillow_nearest(width, columns), pillow_nearest(height, rows), out);
    case Filter::cv_nearest: return nearest(source, opencv_nearest(width, columns), opencv_nearest(height, rows), out);
    case Filter::cv_linear:
    case Filter::cv_area: return opencv_linear_or_area(source, filter, columns, rows, out);
    case Filter::cv_cubic: return opencv<std::int32_t>(source, filter, columns, rows, out);
    case Filter::cv_lanczos4: return opencv<double>(source, filter, columns, rows, out);
    default: return pillow(source, filter, columns, rows, out);
  }
}

}  // namespace opgate::ops::image_preprocess

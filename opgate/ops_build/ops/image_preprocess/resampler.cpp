#include "resampler.h"

#include <algorithm>

#include "grey.h"

namespace opgate::ops::image_preprocess {

codecs::DecodeStatus resample(codecs::Decoder& decoder, int source_width, int source_height, const Part& columns,
                              const Part& rows, bool grey, const images::Normalization& normalization,
                              const Planes& planes) {
  using codecs::DecodeStatus;
  const images::RowResampler across(images::bilinear_taps(source_width, columns.whole, columns.first, columns.count),
                                    normalization);
  const std::vector<images::Tap> down = images::bilinear_taps(source_height, rows.whole, rows.first, rows.count);
  const std::size_t count = std::size_t{3} * static_cast<std::size_t>(source_width);
  std::vector<std::uint8_t> kept(2 * count);  // source row y is in half y % 2
  std::vector<float> row(images::blended_size(source_width));
  const auto half = [&](int y) { return kept.data() + static_cast<std::size_t>(y % 2) * count; };

  int next = 0;  // the next source row
  const auto read_to = [&](int last) {
    for (; next <= last; ++next) {
      if (const DecodeStatus status = decoder.read_row(half(next)); status != DecodeStatus::good) return status;
      if (grey) make_grey(half(next), source_width);
    }
    return DecodeStatus::good;
  };
  for (int y = 0; y < rows.count; ++y) {
    const images::Tap tap = down[static_cast<std::size_t>(y)];
    const int second = std::min(tap.first + 1, source_height - 1);
    if (const DecodeStatus status = read_to(second); status != DecodeStatus::good) return status;
    images::blend_rows(half(tap.first), half(second), tap.weight, source_width, row.data());
    const std::ptrdiff_t offset = planes.strides.origin + y * planes.strides.row;
    float* const out[3] = {planes.data[0] + offset, planes.data[1] + offset, planes.data[2] + offset};
    across.run(row.data(), out, planes.strides.column);
  }
  // Rows that no output needs are read too, because only then a truncated file is noticed.
  if (const DecodeStatus status = read_to(source_height - 1); status != DecodeStatus::good) return status;
  return decoder.finish();
}

}  // namespace opgate::ops::image_preprocess

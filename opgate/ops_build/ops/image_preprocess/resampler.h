// Resizes a picture with the filter `fast`, normalizes it and writes it as planes. It gets the picture row by row.
#pragma once

#include "images/codecs/decoder.h"
#include "images/resampling.h"
#include "placement.h"

namespace opgate::ops::image_preprocess {

/// The planes of R, G and B: pixel (x, y) is data[c][strides.origin + x * strides.column + y * strides.row].
struct Planes {
  float* data[3];
  codecs::Strides strides;
};

/// Resizes the picture from `decoder` (source_width x source_height after its reduction) and writes the part of it that
/// `columns` and `rows` say. The decoder has been started. Two rows of the source are kept in memory. Each row of the
/// result is blended from them and then resampled horizontally. If `grey`, all three planes get the grey value.
codecs::DecodeStatus resample(codecs::Decoder& decoder, int source_width, int source_height, const Part& columns,
                              const Part& rows, bool grey, const images::Normalization& normalization,
                              const Planes& planes);

}  // namespace opgate::ops::image_preprocess

// Bilinear resize, normalization and transposition to planes of a picture that comes row by row.
#pragma once

#include "images/codecs/decoder.h"
#include "images/resampling.h"

namespace opgate::ops::image_preprocess {

/// Where R, G and B go: pixel (x, y) to data[c][strides.origin + x * strides.column + y * strides.row].
struct Planes {
  float* data[3];
  codecs::Strides strides;
};

/// Resizes what `decoder` gives (already started with a reduction; source_width x source_height) to width x height. Of
/// the source two rows are kept; each row of the result is blended from them, then resampled across.
codecs::DecodeStatus resample(codecs::Decoder& decoder, int source_width, int source_height, int width, int height,
                              const images::Normalization& normalization, const Planes& planes);

}  // namespace opgate::ops::image_preprocess

// Bilinear resize, normalization and transposition to planes of a picture that comes row by row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codecs/decoder.h"

namespace opgate::ops {

/// value = pixel * scale + bias for R, G and B.
struct Normalization {
  float scale[3];
  float bias[3];
};

/// Where R, G and B go: pixel (x, y) to data[c][strides.origin + x * strides.column + y * strides.row].
struct Planes {
  float* data[3];
  codecs::Strides strides;
};

/// A tap of the bilinear filter: between the source's places `first` and `first + 1`, of which the second weighs
/// `weight`. At the edges the weight is 0.
struct Tap {
  int first;
  float weight;
};

/// Half-pixel centres, clamped at the edges: place i of `to` lies at (i + 0.5) * from / to - 0.5.
std::vector<Tap> bilinear_taps(int from, int to);

/// Resizes what `decoder` gives (already started with a reduction; source_width x source_height) to width x height. Of
/// the source two rows are kept; each row of the result is blended from them, then resampled across.
codecs::DecodeStatus resample(codecs::Decoder& decoder, int source_width, int source_height, int width, int height,
                              const Normalization& normalization, const Planes& planes);

}  // namespace opgate::ops

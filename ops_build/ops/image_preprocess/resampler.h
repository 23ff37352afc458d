// Bilinear resize, normalization and transposition to planes of a picture that comes row by row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codecs/decoder.h"

namespace opgate::ops {

/// value = pixel * scale + bias, plane by plane in the order of the output.
struct Normalization {
  float scale[3];
  float bias[3];
  int channel[3];  ///< which of R, G, B
};

/// Three planes to write to: pixel (x, y) of plane k goes to data[k * plane + strides.origin + x * column + y * row].
struct Planes {
  float* data;
  std::ptrdiff_t plane;
  codecs::Strides strides;
};

/// A tap of the bilinear filter: source places `first` and `second`, and the weight of the second.
struct Tap {
  int first;
  int second;
  float weight;
};

/// Half-pixel centres, clamped at the edges: place i of `to` lies at (i + 0.5) * from / to - 0.5.
std::vector<Tap> bilinear_taps(int from, int to);

/// Resizes what `decoder` gives (already started with a reduction; source_width x source_height) to width x height. Each
/// source row is resampled across once; two such rows are kept.
codecs::DecodeStatus resample(codecs::Decoder& decoder, int source_width, int source_height, int width, int height,
                              const Normalization& normalization, const Planes& planes);

}  // namespace opgate::ops

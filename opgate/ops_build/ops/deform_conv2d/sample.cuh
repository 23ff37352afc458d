// Where DeformConv2d samples its input, on CUDA.
#pragma once

#include "geometry.h"
#include "kernel_toolkit/sample.h"

namespace opgate::ops::deform_conv2d {

/// Where a tap samples the input for an output pixel.
template <typename T>
__device__ Sample<ComputeType<T>> sample_of(const Geometry& g, const T* offset, std::int64_t image, std::int64_t group,
                                            std::int64_t tap, std::int64_t pixel) {
  using C = ComputeType<T>;
  const T* const own = offset + g.offset_at(image, group, tap) + pixel;
  const C y = static_cast<C>(g.place_y(tap, pixel / g.ow)) + static_cast<C>(own[0]);
  const C x = static_cast<C>(g.place_x(tap, pixel % g.ow)) + static_cast<C>(own[g.pixels()]);
  return Sample<C>::at(x, y, g.w, g.h);
}

}  // namespace opgate::ops::deform_conv2d

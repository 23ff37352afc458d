// The order of neighbours, the same on every device.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/dtype.h"

namespace opgate::ops::knn_query {

/// (dx dx + dy dy) + dz dz, each operation rounded to f32: where this is compiled for the CPU, fused multiply-adds must
/// be off (-ffp-contract=off).
OPGATE_HOST_DEVICE inline float squared_distance(float dx, float dy, float dz) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(__fadd_rn(__fmul_rn(dx, dx), __fmul_rn(dy, dy)), __fmul_rn(dz, dz));
#else
  return (dx * dx + dy * dy) + dz * dz;
#endif
}

/// A point and its squared distance d2 >= 0 as one number: the nearest is the smallest, of equally near ones the one
/// with the lowest index. The bits of floats that aren't negative are ordered as the floats are.
using Neighbour = std::uint64_t;

OPGATE_HOST_DEVICE inline Neighbour neighbour(float d2, std::uint32_t index) {
  std::uint32_t bits;
  std::memcpy(&bits, &d2, sizeof bits);  // nvcc's std::bit_cast is the host's
  return static_cast<Neighbour>(bits) << 32 | index;
}

OPGATE_HOST_DEVICE inline float squared_distance_of(Neighbour neighbour) {
  const auto bits = static_cast<std::uint32_t>(neighbour >> 32);
  float d2;
  std::memcpy(&d2, &bits, sizeof d2);
  return d2;
}

OPGATE_HOST_DEVICE inline std::uint32_t index_of(Neighbour neighbour) { return static_cast<std::uint32_t>(neighbour); }

}  // namespace opgate::ops::knn_query

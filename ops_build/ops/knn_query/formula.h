// The order of neighbours, which is the same on every device.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/dtype.h"

namespace opgate::ops::knn_query {

/// (dx dx + dy dy) + dz dz, with each operation rounded to f32. On the CPU it must be compiled without fused
/// multiply-adds (-ffp-contract=off).
OPGATE_HOST_DEVICE inline float squared_distance(float dx, float dy, float dz) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(__fadd_rn(__fmul_rn(dx, dx), __fmul_rn(dy, dy)), __fmul_rn(dz, dz));
#else
  return (dx * dx + dy * dy) + dz * dz;
#endif
}

/// A point and its squared distance d2 >= 0 as one number. The nearest point is the smallest number; of equally near
/// points the one with the lowest index. Floats that aren't negative have the same order as their bits.
using Neighbour = std::uint64_t;

OPGATE_HOST_DEVICE inline Neighbour neighbour(float d2, std::uint32_t index) {
  std::uint32_t bits;
  std::memcpy(&bits, &d2, sizeof bits);  // nvcc's std::bit_cast is a host function
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

// The order of neighbours, which is the same on every device.
#pragma once

#include <cstdint>
#include <cstring>

#include "signature/dtype.h"

namespace opgate::ops::knn_query {

/// sum + d d, with each operation rounded. A squared distance begins with 0 and adds one axis after the other. On the
/// CPU it must be compiled without fused multiply-adds (-ffp-contract=off).
OPGATE_HOST_DEVICE inline float add_square(float sum, float d) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(sum, __fmul_rn(d, d));
#else
  return sum + d * d;
#endif
}

OPGATE_HOST_DEVICE inline double add_square(double sum, double d) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(sum, __dmul_rn(d, d));
#else
  return sum + d * d;
#endif
}

/// A point and its squared distance d2 >= 0 as one number. The nearest point is the smallest number; of equally near
/// points the one with the lowest index. Floats that aren't negative have the same order as their bits.
template <typename T>
struct NeighbourOf;

template <>
struct NeighbourOf<float> {
  using Type = std::uint64_t;
  using Bits = std::uint32_t;
};

template <>
struct NeighbourOf<double> {
  __extension__ using Type = unsigned __int128;
  using Bits = std::uint64_t;
};

template <typename T>
using Neighbour = typename NeighbourOf<T>::Type;

template <typename T>
OPGATE_HOST_DEVICE Neighbour<T> neighbour(T d2, std::uint32_t index) {
  typename NeighbourOf<T>::Bits bits;
  std::memcpy(&bits, &d2, sizeof bits);  // nvcc's std::bit_cast is a host function
  return static_cast<Neighbour<T>>(bits) << 32 | index;
}

template <typename T>
OPGATE_HOST_DEVICE T squared_distance_of(Neighbour<T> neighbour) {
  const auto bits = static_cast<typename NeighbourOf<T>::Bits>(neighbour >> 32);
  T d2;
  std::memcpy(&d2, &bits, sizeof d2);
  return d2;
}

template <typename Key>
OPGATE_HOST_DEVICE std::uint32_t index_of(Key neighbour) {
  return static_cast<std::uint32_t>(neighbour);
}

}  // namespace opgate::ops::knn_query

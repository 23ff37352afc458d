// The least keys that a warp has seen, as neighbours or rows.
#pragma once

#include "distance.h"

namespace opgate::ops::knn_query {

inline constexpr int kWarp = 32;
inline constexpr unsigned kWholeWarp = 0xffffffffu;

/// Greater than every neighbour and every row.
template <typename Key>
constexpr Key kNone = ~Key{0};

template <typename Key>
__device__ Key from_lane(Key value, int lane) {
  return __shfl_sync(kWholeWarp, value, lane);
}
template <typename Key>
__device__ Key from_lane_before(Key value) {
  return __shfl_up_sync(kWholeWarp, value, 1);
}

/// A neighbour of f64 is shuffled in halves.
template <>
__device__ inline Neighbour<double> from_lane(Neighbour<double> value, int lane) {
  const auto high = from_lane(static_cast<std::uint64_t>(value >> 64), lane);
  return static_cast<Neighbour<double>>(high) << 64 | from_lane(static_cast<std::uint64_t>(value), lane);
}
template <>
__device__ inline Neighbour<double> from_lane_before(Neighbour<double> value) {
  const auto high = from_lane_before(static_cast<std::uint64_t>(value >> 64));
  return static_cast<Neighbour<double>>(high) << 64 | from_lane_before(static_cast<std::uint64_t>(value));
}

/// The least value of a warp.
template <typename Key>
__device__ Key least_of_warp(Key value) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int bits = kWarp / 2; bits > 0; bits /= 2) {
    const Key other = from_lane(value, lane ^ bits);
    if (other < value) value = other;
  }
  return value;
}

/// The least keys of a warp so far, sorted. Lane i has key i.
template <typename Key>
struct Least {
  Key own;    ///< kNone if there are fewer keys
  Key limit;  ///< a key that is to be added must be less
  int most;   ///< the number of wanted keys, at most that of lanes

  /// Starts without keys. All that are to be added are less than `limit`.
  __device__ Least(int most, Key limit) : own(kNone<Key>), limit(limit), most(most) {}

  /// Adds the candidates of all lanes.
  __device__ void add(Key candidate) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    unsigned less = __ballot_sync(kWholeWarp, candidate < limit);
    for (; less; less &= less - 1) {
      const Key next = from_lane(candidate, __ffs(static_cast<int>(less)) - 1);
      if (next >= limit) continue;                                    // a candidate before it was less
      const unsigned before = __ballot_sync(kWholeWarp, own < next);  // the lowest lanes, because the keys are sorted
      const int position = __popc(before);
      const Key moved = from_lane_before(own);
      if (lane == position) own = next;
      if (lane > position) own = moved;
      const Key last = from_lane(own, most - 1);
      if (last < limit) limit = last;
    }
  }
};

}  // namespace opgate::ops::knn_query

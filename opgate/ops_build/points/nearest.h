// The nearest points of queries so far. Points come in blocks of 16.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#ifdef __AVX__
#include <immintrin.h>
#elif defined(__SSE__)
#include <xmmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "distance.h"

namespace opgate::ops::knn_query {
namespace {

/// The points of a block, and the queries of a group.
constexpr int kLanes = 16;

/// One number for each of the kLanes points of a block.
template <typename T>
struct LanesOf {
  typedef T Type __attribute__((vector_size(kLanes * sizeof(T))));
};
template <typename T>
using Lanes = typename LanesOf<T>::Type;

template <typename T>
void load(const T* from, Lanes<T>& lanes) {
  std::memcpy(&lanes, from, sizeof lanes);
}

/// Bit i says whether values[i] <= most[i].
inline unsigned not_greater(const float* values, const float* most) {
  unsigned bits = 0;
#ifdef __AVX512F__
  bits = _mm512_cmp_ps_mask(_mm512_loadu_ps(values), _mm512_loadu_ps(most), _CMP_LE_OQ);
#elif defined(__AVX__)
  for (int i = 0; i < kLanes; i += 8) {
    const __m256 less = _mm256_cmp_ps(_mm256_loadu_ps(values + i), _mm256_loadu_ps(most + i), _CMP_LE_OQ);
    bits |= static_cast<unsigned>(_mm256_movemask_ps(less)) << i;
  }
#elif defined(__SSE__)
  for (int i = 0; i < kLanes; i += 4) {
    const __m128 less = _mm_cmple_ps(_mm_loadu_ps(values + i), _mm_loadu_ps(most + i));
    bits |= static_cast<unsigned>(_mm_movemask_ps(less)) << i;
  }
#elif defined(__aarch64__)
  constexpr uint32x4_t kBits = {1, 2, 4, 8};
  for (int i = 0; i < kLanes; i += 4) {
    const uint32x4_t less = vcleq_f32(vld1q_f32(values + i), vld1q_f32(most + i));
    bits |= vaddvq_u32(vandq_u32(less, kBits)) << i;
  }
#else
  for (int i = 0; i < kLanes; ++i) bits |= static_cast<unsigned>(values[i] <= most[i]) << i;
#endif
  return bits;
}

inline unsigned not_greater(const double* values, const double* most) {
  unsigned bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= static_cast<unsigned>(values[i] <= most[i]) << i;
  return bits;
}

/// The worst neighbour that a list starts with: a point whose squared distance isn't finite is never nearer.
template <typename T>
Neighbour<T> none() {
  return neighbour(std::numeric_limits<T>::infinity(), 0);
}

/// The lists of a group of queries that want at most P points: each is sorted, and is in vector registers while points
/// are inserted.
template <int P>
class SortedLists {
 public:
  using T = float;

  explicit SortedLists(std::int64_t most) : most_(static_cast<int>(most)) {}

  void clear(int query) {
    for (Vector& vector : lists_[query]) vector = static_cast<long long>(none<T>()) - Vector{};
  }

  /// Inserts the points whose bits are set and returns the worst neighbour of the query.
  Neighbour<T> add(int query, unsigned near, const float* d2, const std::uint32_t* index) {
    Vector list[kVectors];
    std::memcpy(list, lists_[query], sizeof list);
    for (; near; near &= near - 1) {
      const int i = std::countr_zero(near);
      const Vector next = static_cast<long long>(neighbour(d2[i], index[i])) - Vector{};
      // What is less than `next` stays. The rest moves up by one, and `next` comes before it.
      for (int v = kVectors - 1; v >= 0; --v) {
        const Vector before = v ? list[v - 1] : Vector{};
        const Vector moved = __builtin_shuffle(before, list[v], Vector{7, 8, 9, 10, 11, 12, 13, 14});
        const Vector shifted = moved > next ? moved : next;
        list[v] = list[v] < next ? list[v] : shifted;
      }
    }
    std::memcpy(lists_[query], list, sizeof list);
    return keys(query)[most_ - 1];
  }

  std::span<const Neighbour<T>> sorted(int query) {
    const Neighbour<T>* const all = keys(query);
    int found = 0;
    while (found < most_ && all[found] < none<T>()) ++found;
    return {all, static_cast<std::size_t>(found)};
  }

 private:
  typedef long long Vector __attribute__((vector_size(64), may_alias));
  static constexpr int kVectors = P / 8;

  const Neighbour<T>* keys(int query) const { return reinterpret_cast<const Neighbour<T>*>(lists_[query]); }

  Vector lists_[kLanes][kVectors];
  int most_;
};

/// The lists of a group of queries that want any number of points. A list has room for as many points again, so that
/// selecting the nearest happens rarely.
template <typename Number>
class BufferedLists {
 public:
  using T = Number;

  explicit BufferedLists(std::int64_t most)
      : most_(static_cast<std::size_t>(most)), room_(most_ + std::max<std::size_t>(most_, kLeastRoom)) {}

  void clear(int query) {
    buffers_[query].resize(room_);
    sizes_[query] = 0;
    worst_[query] = none<T>();
  }

  Neighbour<T> add(int query, unsigned near, const T* d2, const std::uint32_t* index) {
    if (sizes_[query] + kLanes > room_) select(query);
    Neighbour<T>* to = buffers_[query].data() + sizes_[query];
    for (; near; near &= near - 1) {
      const int i = std::countr_zero(near);
      *to = neighbour(d2[i], index[i]);
      to += *to < worst_[query];
    }
    sizes_[query] = static_cast<std::size_t>(to - buffers_[query].data());
    return worst_[query];
  }

  std::span<const Neighbour<T>> sorted(int query) {
    select(query);
    const auto begin = buffers_[query].begin();
    std::sort(begin, begin + static_cast<std::ptrdiff_t>(sizes_[query]));
    return {buffers_[query].data(), sizes_[query]};
  }

 private:
  static constexpr std::size_t kLeastRoom = 64;

  /// Keeps the `most_` nearest points.
  void select(int query) {
    if (sizes_[query] < most_ || sizes_[query] == 0) return;
    const auto begin = buffers_[query].begin();
    const auto last = begin + static_cast<std::ptrdiff_t>(most_ - 1);
    std::nth_element(begin, last, begin + static_cast<std::ptrdiff_t>(sizes_[query]));
    sizes_[query] = most_;
    worst_[query] = *last;
  }

  std::size_t most_, room_;
  std::vector<Neighbour<T>> buffers_[kLanes];
  std::size_t sizes_[kLanes] = {};
  Neighbour<T> worst_[kLanes];
};

}  // namespace
}  // namespace opgate::ops::knn_query

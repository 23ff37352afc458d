// A stand-in for CUB's stable sort of pairs.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "../storage.h"

namespace cub {

struct DeviceRadixSort {
  template <typename Key, typename Value>
  static cudaError_t SortPairs(void* storage, std::size_t& bytes, const Key* keys, Key* to_keys, const Value* values,
                               Value* to_values, std::int64_t count, int begin_bit, int end_bit, cudaStream_t stream) {
    const auto digits = [=](std::int64_t i) {
      const auto digit = keys[i] >> begin_bit;
      return end_bit - begin_bit < static_cast<int>(8 * sizeof(Key)) ? digit & ((Key{1} << (end_bit - begin_bit)) - 1)
                                                                     : digit;
    };
    return emulation::with_storage(storage, bytes, 16 * count, stream, [=] {
      std::vector<std::int64_t> order(static_cast<std::size_t>(count));
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, {}, digits);
      for (std::int64_t i = 0; i < count; ++i) {
        to_keys[i] = keys[order[static_cast<std::size_t>(i)]];
        to_values[i] = values[order[static_cast<std::size_t>(i)]];
      }
    });
  }
};

}  // namespace cub

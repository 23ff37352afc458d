// Sorted keys on CUDA: kernels add up what has equal keys in a fixed order, without atomics.
#pragma once

#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "elementwise.cuh"

namespace opgate {

/// The first of the `count` sorted keys that isn't less than `key`, or `count`.
template <typename Key>
__device__ std::int64_t first_of(const Key* keys, std::int64_t count, Key key) {
  std::int64_t begin = 0;
  for (std::int64_t end = count; begin < end;) {
    const std::int64_t middle = (begin + end) / 2;
    if (keys[middle] < key) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

/// The sorted keys that equal `key`, which is less than 2^32 - 1.
struct KeyRange {
  std::int64_t begin, end;

  __device__ static KeyRange of(const std::uint32_t* keys, std::int64_t count, std::int64_t key) {
    return {first_of(keys, count, static_cast<std::uint32_t>(key)),
            first_of(keys, count, static_cast<std::uint32_t>(key + 1))};
  }
};

/// Keys and a value for each, before and after they are sorted by the keys. Values of equal keys keep their order.
template <typename Value, typename Key = std::uint32_t>
struct SortedKeysOf {
  std::span<Key> keys, sorted_keys;
  std::span<Value> values, sorted_values;
  std::span<char> storage;

  static SortedKeysOf take(Workspace& workspace, std::int64_t count) {
    std::size_t bytes = 0;
    if (sort_pairs(nullptr, bytes, nullptr, nullptr, nullptr, nullptr, count, kBits, nullptr) != cudaSuccess)
      throw std::runtime_error("CUB does not say how much memory it wants");
    return {workspace.take<Key>(count), workspace.take<Key>(count), workspace.take<Value>(count),
            workspace.take<Value>(count),
            workspace.take<char>(static_cast<std::int64_t>(std::max<std::size_t>(bytes, 1)))};
  }

  std::int64_t count() const { return static_cast<std::int64_t>(keys.size()); }

  /// Sorts what a kernel has written to `keys` and `values`. No key is greater than `most`: the bits that all keys lack
  /// cost nothing.
  Status sort(Context& context, std::uint64_t most = std::numeric_limits<Key>::max()) const {
    if (keys.empty()) return {};
    std::size_t bytes = storage.size();
    const int bits = std::clamp(static_cast<int>(std::bit_width(most)), 1, kBits);
    return cuda::status(sort_pairs(storage.data(), bytes, keys.data(), sorted_keys.data(), values.data(),
                                   sorted_values.data(), count(), bits, stream_of(context)),
                        "sorting");
  }

 private:
  static constexpr int kBits = 8 * sizeof(Key);

  static cudaError_t sort_pairs(void* storage, std::size_t& bytes, const Key* keys, Key* sorted_keys,
                                const Value* values, Value* sorted_values, std::int64_t count, int bits,
                                cudaStream_t stream) {
    return cub::DeviceRadixSort::SortPairs(storage, bytes, keys, sorted_keys, values, sorted_values, count, 0, bits,
                                           stream);
  }
};

using SortedKeys = SortedKeysOf<std::uint32_t>;

}  // namespace opgate

// Search in sorted keys.
#pragma once

#include <cstdint>

namespace opgate {

/// The position of the first of `count` ascending keys that isn't less than `key`; `count` if there is none.
__device__ inline std::int64_t first_of(const std::uint32_t* keys, std::int64_t count, std::uint32_t key) {
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

}  // namespace opgate

// The few numbers of many that are greater than a limit, on the CPU.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace opgate::detection {

/// Calls `see(i)` for each i < count with values[i] > limit, in their order. Nearly no number should be greater. The
/// comparisons are one vectorized loop, and then eight numbers cost one test.
template <typename See>
void for_each_greater(const float* values, std::int64_t count, float limit, See see) {
  constexpr std::int64_t kBlock = 64, kWord = 8;
  std::uint8_t greater[kBlock];
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t in_block = count - begin < kBlock ? count - begin : kBlock;
    if (in_block == kBlock) {
      for (std::int64_t i = 0; i < kBlock; ++i) greater[i] = values[begin + i] > limit;
    } else {
      for (std::int64_t i = 0; i < kBlock; ++i) greater[i] = i < in_block && values[begin + i] > limit;
    }
    for (std::int64_t at = 0; at < kBlock; at += kWord) {
      std::uint64_t word;
      std::memcpy(&word, greater + at, sizeof word);
      for (; word; word &= word - 1) {
        const int bit =
            std::endian::native == std::endian::little ? std::countr_zero(word) : 63 - std::countl_zero(word);
        see(begin + at + bit / 8);
      }
    }
  }
}

}  // namespace opgate::detection

// Divisions of indices by a number that stays the same for a launch. A GPU has no instruction for a division: of 64
// bits it takes 25 to 100 instructions, and these take three.
#pragma once

#include <cstdint>
#include <limits>

#include "formula.h"

namespace opgate {

/// Divides indices from 0 on by a positive number. Index is std::int32_t or std::int64_t.
template <typename Index>
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(std::int64_t number) : number_(number) {}

  OPGATE_HOST_DEVICE friend std::int64_t operator/(std::int64_t index, const Divisor& by) { return index / by.number_; }
  OPGATE_HOST_DEVICE friend std::int64_t operator%(std::int64_t index, const Divisor& by) { return index % by.number_; }
  OPGATE_HOST_DEVICE Index number() const { return number_; }

 private:
  std::int64_t number_ = 1;
};

/// By a multiplication: T. Granlund, P. Montgomery, "Division by Invariant Integers using Multiplication", 1994, figure
/// 4.1. Indices below 2^31 keep the sum in 32 bits.
template <>
class Divisor<std::int32_t> {
 public:
  Divisor() = default;
  explicit Divisor(std::int64_t number) : number_(static_cast<std::uint32_t>(number)) {
    while ((std::uint64_t{1} << shift_) < number_) ++shift_;
    factor_ =
        static_cast<std::uint32_t>(((std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift_) - number_)) / number_ + 1);
  }

  OPGATE_HOST_DEVICE friend std::int32_t operator/(std::int32_t index, const Divisor& by) {
    const auto n = static_cast<std::uint32_t>(index);
    const auto high = static_cast<std::uint32_t>((std::uint64_t{n} * by.factor_) >> 32);
    return static_cast<std::int32_t>((high + n) >> by.shift_);
  }
  OPGATE_HOST_DEVICE friend std::int32_t operator%(std::int32_t index, const Divisor& by) {
    return index - index / by * static_cast<std::int32_t>(by.number_);
  }
  OPGATE_HOST_DEVICE std::int32_t number() const { return static_cast<std::int32_t>(number_); }

 private:
  std::uint32_t number_ = 1, factor_ = 1, shift_ = 0;
};

/// Calls launch(Index()) with the type for indices of up to `most` elements: 32 bits, if the threads of the last block
/// have numbers of 32 bits too.
template <typename Launch>
void with_index(std::int64_t most, const Launch& launch) {
  constexpr std::int64_t kBlock = 1024;
  if (most <= std::numeric_limits<std::int32_t>::max() - kBlock)
    launch(std::int32_t());
  else
    launch(std::int64_t());
}

}  // namespace opgate

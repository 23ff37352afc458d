// The sizes of a call, which are numbers.
#pragma once

#include "walk.h"

namespace opgate {

/// Applies an operation to two numbers. Division rounds down. Fails on overflow and on division by zero.
Status apply(Expr::Kind operation, std::int64_t a, std::int64_t b, std::int64_t& result);

/// The algebra (walk.h) of numbers.
struct Integers {
  using Size = std::int64_t;

  static Size constant(std::int64_t number) { return number; }
  static std::optional<std::int64_t> number(Size size) { return size; }
  static std::optional<Size> equal(Size a, Size b) { return a == b ? std::optional(a) : std::nullopt; }
  static Status apply(Expr::Kind operation, Size a, Size b, Size& result) {
    return opgate::apply(operation, a, b, result);
  }
  static std::string text(Size size) { return std::to_string(size); }
};

using CallWalk = Walk<Integers>;

}  // namespace opgate

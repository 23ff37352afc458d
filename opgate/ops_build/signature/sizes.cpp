#include "sizes.h"

#include <limits>

namespace opgate {

Status apply(Expr::Kind operation, std::int64_t a, std::int64_t b, std::int64_t& result) {
  bool overflow = false;
  switch (operation) {
    case Expr::Kind::add: overflow = __builtin_add_overflow(a, b, &result); break;
    case Expr::Kind::sub: overflow = __builtin_sub_overflow(a, b, &result); break;
    case Expr::Kind::mul: overflow = __builtin_mul_overflow(a, b, &result); break;
    case Expr::Kind::min: result = std::min(a, b); break;
    case Expr::Kind::max: result = std::max(a, b); break;
    default: {
      if (b == 0) return Status::invalid("a size is divided by zero");
      overflow = a == std::numeric_limits<std::int64_t>::min() && b == -1;
      if (overflow) break;
      const std::int64_t quotient = a / b, remainder = a % b;
      const bool rounded_up = remainder != 0 && (remainder < 0) != (b < 0);  // C++ rounds toward zero
      if (operation == Expr::Kind::div)
        result = quotient - rounded_up;
      else if (operation == Expr::Kind::mod)
        result = remainder + (rounded_up ? b : 0);
      else
        result = quotient + (remainder != 0 && !rounded_up);  // ceildiv
    }
  }
  return overflow ? Status::invalid("a size overflows 64 bits") : Status();
}

}  // namespace opgate

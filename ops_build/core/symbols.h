// Sizes before the run: a number, a name that the graph gives to an unknown size, or neither.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "walk.h"

namespace opgate {

/// Without a number and a name nothing is known of the size.
struct SymbolicSize {
  std::optional<std::int64_t> number;
  std::string_view name;

  bool unknown() const { return !number && name.empty(); }
};

/// The algebra of sizes of which some are known. An operation on a size that is not a number gives an unknown one.
struct Symbols {
  using Size = SymbolicSize;

  static Size constant(std::int64_t number) { return {number, {}}; }
  static std::optional<std::int64_t> number(const Size& size) { return size.number; }
  static std::optional<Size> equal(const Size& a, const Size& b);
  static Status apply(Expr::Kind operation, const Size& a, const Size& b, Size& result);
  static std::string text(const Size& size);
};

using SymbolicWalk = Walk<Symbols>;

/// The dims of one output; nullopt where not even the rank is known.
using SymbolicShape = std::optional<InlineVector<SymbolicSize, 8>>;

/// The outputs' shapes of a walk that has bound its inputs. Every size that is not known gets a name unlike any other,
/// so that no two of them are taken for equal; a size that the kernel binds has one name wherever it stands. `names` holds the
/// characters of these names.
Status output_shapes(SymbolicWalk& walk, std::deque<std::string>& names, std::vector<SymbolicShape>& shapes);

}  // namespace opgate

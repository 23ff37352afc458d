#include <limits>

#include "signature/sizes.h"
#include "signature/symbols.h"
#include "walk_cases.h"

namespace opgate {
namespace {

using test::number_in;

TEST(Walk_, AgreesWithTheSharedCasesOverIntegers) {
  int tried = 0;
  for (const test::WalkCase& walk_case : test::walk_cases()) {
    if (!test::all_known(walk_case)) continue;
    ++tried;
    test::run_case(
        walk_case, Integers(), [](const std::string& text) { return *number_in(text); },
        [](const std::string&, std::optional<std::int64_t>) { return std::nullopt; });
  }
  EXPECT_GT(tried, 40);
}

TEST(Walk_, AgreesWithTheSharedCasesOverSymbols) {
  std::deque<std::string> names;  // symbols refer to them
  const auto symbol = [&](const std::string& text) {
    if (const auto number = number_in(text)) return Symbols::constant(*number);
    return SymbolicSize{std::nullopt, text == "?" ? std::string_view() : names.emplace_back(text)};
  };
  int tried = 0;
  for (const test::WalkCase& walk_case : test::walk_cases()) {
    ++tried;
    test::run_case(walk_case, Symbols(), symbol,
                   [&](const std::string& name, std::optional<SymbolicSize>) { return symbol(name); });
  }
  EXPECT_GT(tried, 60);
}

std::int64_t evaluated(const std::string& text, std::int64_t n) {
  const Signature signature = parse_signature("E(x: f32[n]) -> (y: f32[" + text + "])");
  CallWalk walk(signature);
  const std::vector<std::int64_t> dims{n};
  const KnownInput<std::int64_t> input{true, DType::f32, dims, std::nullopt};
  std::optional<std::int64_t> value;
  Status status = walk.bind(std::span(&input, 1), [](int) { return std::nullopt; });
  if (status.ok()) status = walk.evaluate(signature.outputs[0].dims[0].expr, value);
  return status.ok() ? value.value() : std::numeric_limits<std::int64_t>::min();
}

constexpr std::int64_t kFailed = std::numeric_limits<std::int64_t>::min();

TEST(Sizes, OverflowFails) {
  EXPECT_EQ(evaluated("n*9223372036854775807", 2), kFailed);
  EXPECT_EQ(evaluated("n+9223372036854775807", 1), kFailed);
  EXPECT_EQ(evaluated("0-9223372036854775807-n", 2), kFailed);
  EXPECT_EQ(evaluated("n/(n-n)", 2), kFailed);
  EXPECT_EQ(evaluated("ceildiv(n-10,2)", 7), -1);
  std::int64_t result = 0;
  EXPECT_FALSE(apply(Expr::Kind::div, std::numeric_limits<std::int64_t>::min(), -1, result).ok());
}

TEST(Symbols_, UnknownSizesGetUniqueNames) {
  const Signature signature = parse_signature("X(a: f32[n]) -> (y: f32[n+1], z: f32[n+1], v: f32[u<=n], w: f32[u])");
  std::deque<std::string> names;
  const auto shapes_of = [&](SymbolicSize n) {
    SymbolicWalk walk(signature);
    const KnownInput<SymbolicSize> input{true, DType::f32, std::span<const SymbolicSize>(&n, 1), std::nullopt};
    EXPECT_TRUE(walk.bind(std::span(&input, 1), [](int) { return std::nullopt; }).ok());
    std::vector<SymbolicShape> shapes;
    EXPECT_TRUE(output_shapes(walk, names, shapes).ok());
    return shapes;
  };
  const auto shapes = shapes_of({std::nullopt, "rows"});
  EXPECT_FALSE((*shapes[0])[0].name.empty());
  EXPECT_NE((*shapes[0])[0].name, (*shapes[1])[0].name);
  EXPECT_EQ((*shapes[2])[0].name, (*shapes[3])[0].name);          // the same size, which the kernel binds
  EXPECT_EQ((*shapes_of(Symbols::constant(0))[2])[0].number, 0);  // a size of at most 0
}

}  // namespace
}  // namespace opgate

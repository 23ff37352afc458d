// Runs the shared cases over TensorRT's expressions. It needs TensorRT's headers, but not TensorRT.
#include "adapters/tensorrt/expressions.h"

#include <gtest/gtest.h>

#include "walk_cases.h"

namespace opgate {
namespace {

using nvinfer1::IDimensionExpr;

class Expression final : public IDimensionExpr {
 public:
  explicit Expression(std::optional<std::int64_t> number) : value_(number) { mImpl = &value_; }
  ~Expression() noexcept override = default;

 private:
  struct Value final : nvinfer1::apiv::VDimensionExpr {
    explicit Value(std::optional<std::int64_t> number) : number(number) {}
    bool isConstant() const override { return number.has_value(); }
    std::int64_t getConstantValue() const override { return number.value_or(std::numeric_limits<std::int64_t>::min()); }
    bool isSizeTensor() const override { return false; }
    std::optional<std::int64_t> number;
  };

  Value value_;
};

/// Builds expressions whose values TensorRT knows only later. An operation on such an expression gives another one.
class Builder final : public nvinfer1::IExprBuilder {
 public:
  Builder() { mImpl = &expressions_; }
  ~Builder() noexcept override = default;

  const IDimensionExpr* unknown() { return &expressions_.all.emplace_back(std::nullopt); }

 private:
  struct Expressions final : nvinfer1::apiv::VExprBuilder {
    const IDimensionExpr* constant(std::int64_t number) override { return &all.emplace_back(number); }
    const IDimensionExpr* operation(nvinfer1::DimensionOperation, const IDimensionExpr& a,
                                    const IDimensionExpr& b) override {
      EXPECT_FALSE(a.isConstant() && b.isConstant()) << "the algebra computes with constants itself";
      return &all.emplace_back(std::nullopt);
    }
    const IDimensionExpr* declareSizeTensor(std::int32_t, const IDimensionExpr&, const IDimensionExpr&) override {
      return nullptr;
    }
    std::deque<Expression> all;
  };

  Expressions expressions_;
};

/// The algebra with names for the messages, because TensorRT's expressions have no names.
struct NamedExpressions : tensorrt::Expressions {
  std::map<Size, std::string>* names;

  std::optional<Size> equal(Size a, Size b) const {
    const std::optional<Size> size = Expressions::equal(a, b);
    for (const Size other : {a, b}) {
      if (size && names->count(other)) (*names)[*size] = names->at(other);
    }
    return size;
  }

  std::string text(Size size) const {
    const auto name = names->find(size);
    return size->isConstant() || name == names->end() ? Expressions::text(size) : name->second;
  }
};

TEST(Expressions_, AgreeWithTheSharedCases) {
  int cases = 0;
  for (const test::WalkCase& walk_case : test::walk_cases()) {
    const auto unranked = [](const std::string& input) { return input.find("[*]") != std::string::npos; };
    if (std::ranges::any_of(walk_case.inputs, unranked)) continue;  // TensorRT knows every rank
    ++cases;
    Builder builder;
    std::map<const IDimensionExpr*, std::string> names;
    const auto size_of = [&](const std::string& text) -> const IDimensionExpr* {
      if (const auto number = test::number_in(text)) return builder.constant(*number);
      const IDimensionExpr* const size = builder.unknown();
      if (text != "?") names[size] = text;
      return size;
    };
    test::run_case(walk_case, NamedExpressions{{&builder}, &names}, size_of,
                   [&](const std::string& name, std::optional<const IDimensionExpr*>) { return size_of(name); });
  }
  EXPECT_GT(cases, 55);
}

}  // namespace
}  // namespace opgate

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernel_toolkit/op.h"
#include "signature/attributes.h"
#include "signature/parser.h"

namespace opgate {
namespace {

TEST(Attributes_, AreCheckedAndDefaulted) {
  const Signature signature =
      parse_signature("X(a: f32[n]; k: int, m: float[3]=[1,2,3], c: {one|two}=two) -> (y: f32[n])");
  Attributes attributes;
  const auto make = [&](std::optional<AttributeValue> k, std::optional<AttributeValue> m,
                        std::optional<AttributeValue> c) {
    return Attributes::make(signature, {k, m, c}, attributes).message();
  };
  EXPECT_EQ(make(AttributeValue(std::int64_t{5}), {}, {}), "");
  EXPECT_EQ(attributes.integer("k"), 5);
  EXPECT_EQ(attributes.numbers("m"), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(attributes.text("c"), "two");
  EXPECT_THROW(attributes.integer("nothing"), std::logic_error);
  EXPECT_EQ(make({}, {}, {}), "attribute 'k' is required: int");
  EXPECT_EQ(make(AttributeValue(1.5), {}, {}), "attribute 'k': expected int, got a value of another type");
  EXPECT_EQ(make(AttributeValue(std::int64_t{5}), AttributeValue(std::vector<double>{1}), {}),
            "attribute 'm': expected float[3], got 1 values");
  EXPECT_EQ(make(AttributeValue(std::int64_t{5}), {}, AttributeValue(std::string("three"))),
            "attribute 'c': expected {one|two}, got 'three'");
}

TEST(Attributes_, AreCutInMessagesWhereTheyAreLong) {
  const Signature signature = parse_signature("X(a: f32[n]; c: {one|two}, l: str[]=[]) -> (y: f32[n])");
  Attributes attributes;
  const auto make = [&](const std::string& c, const std::vector<std::string>& l) {
    return Attributes::make(signature, {AttributeValue(c), AttributeValue(l)}, attributes).message();
  };
  const std::string most(200, 'x'), choice = "attribute 'c': expected {one|two}, got '";
  EXPECT_EQ(make(most, {}), choice + most + "'");
  EXPECT_EQ(make(most + "y", {}), choice + most + "...'");
  // No character of two bytes is cut in the middle.
  EXPECT_EQ(make(std::string(199, 'x') + "\u00e9", {}), choice + std::string(199, 'x') + "...'");
  const std::string before = "attribute 'l': expected elements without line feeds, got '";
  EXPECT_EQ(make("one", {most + "\n"}), before + most + "...'");
  ASSERT_EQ(make("one", {most}), "");
  EXPECT_EQ(attributes.refuse("l", "fewer").message(),
            "attribute 'l': expected fewer, got ['" + std::string(198, 'x') + "...");
}

TEST(Attributes_, ListsOfTextTravelAsLines) {
  EXPECT_TRUE(lines("").empty());
  EXPECT_EQ(lines("a"), (std::vector<std::string>{"a"}));
  EXPECT_EQ(lines("a\n\nb\n"), (std::vector<std::string>{"a", "", "b", ""}));
}

TEST(Types, SixteenBitFloatsRoundToNearestEven) {
  EXPECT_EQ(bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(bf16(1.00390625f).bits, 0x3f80);  // half way: to even
  EXPECT_EQ(bf16(1.01171875f).bits, 0x3f82);
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(f16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(static_cast<float>(f16(0.1f)), 0.0999755859375f);
}

TEST(Types, ListsAreReadFromTheSignatureByTheCompiler) {
  constexpr TypeLists lists = TypeLists::of(" < T : f16 | f32,\n I: i64> X(a: T[n], b: I[n]) -> (y: T[n])");
  static_assert(lists.count == 2);
  EXPECT_EQ(lists.masks[0], 0b101u);
  EXPECT_EQ(lists.masks[1], 1u << static_cast<int>(DType::i64));
  static_assert(TypeLists::of("X(a: f32[n]) -> (y: f32[n])").count == 0);
}

TEST(Tensors, HaveNoElementsIfADimIsZero) {
  const std::int64_t huge = std::int64_t{1} << 62;
  const std::vector<std::int64_t> dims{huge, huge, 0};
  EXPECT_EQ(Tensor(nullptr, DType::f32, dims).size(), 0);
}

TEST(Attributes_, AreShownAsTheyAreWritten) {
  EXPECT_EQ(text_of(AttributeValue(std::vector<double>{0, static_cast<float>(0.1), std::nan("")})), "[0, 0.1, nan]");
  EXPECT_EQ(text_of(AttributeValue(std::vector<bool>{true, false})), "[true, false]");
  EXPECT_EQ(text_of(AttributeValue(std::vector<std::string>{"a", "b"})), "['a', 'b']");
  EXPECT_EQ(text_of(AttributeValue(std::int64_t{-3})), "-3");
}

TEST(InlineVector_, GrowsPastItsInlineSpace) {
  InlineVector<std::int64_t, 2> values;
  for (std::int64_t i = 0; i < 100; ++i) values.push_back(i);
  const InlineVector<std::int64_t, 2> copy(values);
  values = copy;
  ASSERT_EQ(values.size(), 100u);
  for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(values[i], i);
}

TEST(Tensors, AreReadAsTheirOwnTypeOnly) {
  std::vector<float> values{1, 2, 3};
  const std::vector<std::int64_t> dims{3};
  const Tensor x(values.data(), DType::f32, dims, Device::cpu, "x");
  EXPECT_EQ(x.data<float>()[1], 2);
  EXPECT_EQ(x.span<const float>().size(), 3u);
  static_assert(std::is_same_v<decltype(x.data<float>()), const float*>);
  const auto message = [](const auto& body) -> std::string {
    try {
      body();
    } catch (const std::logic_error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message([&] { x.data<double>(); }), "the kernel accesses tensor 'x', which is f32[3], as f64");
  EXPECT_EQ(message([&] { x.data<std::int32_t>(); }), "the kernel accesses tensor 'x', which is f32[3], as i32");
  const MutableTensor y(values.data(), DType::f32, dims, Device::cpu, "y");
  y.data<float>()[0] = 7;
  EXPECT_EQ(values[0], 7);
  EXPECT_EQ(message([&] { y.data<f16>(); }), "the kernel accesses tensor 'y', which is f32[3], as f16");
  std::vector<std::string_view> texts{"a"};
  const std::vector<std::int64_t> one{1};
  const Tensor text(texts.data(), DType::str, one, Device::cpu, "text");
  EXPECT_EQ(text.data<std::string_view>()[0], "a");
  EXPECT_EQ(message([&] { text.data<std::uint8_t>(); }), "the kernel accesses tensor 'text', which is str[1], as u8");
}

}  // namespace
}  // namespace opgate

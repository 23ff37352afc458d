// What is made of the options of a LiteRT model.
#include "adapters/litert/flexbuffer.cpp"

#include <gtest/gtest.h>

namespace opgate::litert {
namespace {

void append(std::vector<std::uint8_t>& bytes, std::size_t number) {
  for (unsigned i = 0; i < 4; ++i) bytes.push_back(static_cast<std::uint8_t>(number >> (8 * i)));
}

/// The options {"x…x": ["x…x", …]} with `count` elements, where each text has `length` bytes and is the same in the
/// bytes.
std::vector<std::uint8_t> one_text_many_times(std::size_t length, std::size_t count) {
  std::vector<std::uint8_t> bytes(length, 'x');
  bytes.push_back(0);
  append(bytes, 1);
  const std::size_t keys = bytes.size();
  append(bytes, keys);
  append(bytes, count);
  const std::size_t list = bytes.size();
  for (std::size_t i = 0; i < count; ++i) append(bytes, bytes.size());
  append(bytes, bytes.size() - keys);
  append(bytes, 4);
  append(bytes, 1);
  const std::size_t map = bytes.size();
  append(bytes, bytes.size() - list);
  bytes.push_back(kVectorKey << 2u | 2u);
  append(bytes, bytes.size() - map);
  bytes.push_back(kMap << 2u | 2u);
  bytes.push_back(4);
  return bytes;
}

TEST(FlexBuffer, ATextMayBeUsedOften) {
  Options options;
  EXPECT_TRUE(read_options(one_text_many_times(1000, 1000), options).ok());
  const std::vector<std::string> expected(1000, std::string(1000, 'x'));
  EXPECT_EQ(std::get<std::vector<std::string>>(options.at(std::string(1000, 'x'))), expected);
}

TEST(FlexBuffer, SmallOptionsDoNotAskForMuchMemory) {
  Options options;
  const Status status = read_options(one_text_many_times(10'000, 10'000), options);  // 100 MB of texts
  EXPECT_EQ(status.message(), "the node's options point to the same texts or lists too often");
}

}  // namespace
}  // namespace opgate::litert

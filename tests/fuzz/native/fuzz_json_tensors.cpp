// Cuts the tensors out of any text, reads them as every type, and writes them again.
//
// The first byte of an input chooses the limits and whether the text is a body of /infer or of /predict.
#include <cstring>
#include <string_view>

#include "fuzz.h"
#include "json_tensors.h"

namespace {

using namespace opgate::json;
using opgate::fuzz::check;
using opgate::fuzz::counts;

constexpr size_t kMostElements = 1 << 16;
constexpr size_t kSizes[] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2};  // in the order of Type

// Text of a list of these elements.
std::string text_of(const std::vector<char>& elements, size_t count, Type type, bool nulls) {
  std::string text((kMostBytes + 2) * count, '\0');
  text.resize(static_cast<size_t>(format(elements.data(), 0, count, type, {}, text.data(), nulls) - text.data()));
  return "[" + text + "]";
}

void read_numbers(std::string_view text, const Value& value, size_t count, Type type, bool nulls) {
  const size_t size = kSizes[static_cast<size_t>(type)];
  std::vector<char> elements(count * size);  // the sanitizer sees an element too much
  const Failure failure = fill(text, value.begin, value.end, type, elements.data(), count, nulls);
  if (failure) {
    check(failure.begin <= failure.end && failure.end <= text.size(), "a failure lies in the text");
    ++counts()["refused"];
    return;
  }
  ++counts()["read"];
  if (count == 0) return;
  const std::string written = text_of(elements, count, type, nulls);
  std::vector<char> again(elements.size());
  check(!fill(written, 0, written.size(), type, again.data(), count, nulls), "what is written can be read");
  check(text_of(again, count, type, nulls) == written, "what is written and read is the same");
}

void read_strings(std::string_view text, const Value& value) {
  Elements elements(text.substr(value.begin, value.end - value.begin));
  std::string buffer;
  while (elements.next() == Elements::Step::kElement) {
    Text string;
    if (!read_string(elements, string)) {
      const char* const end = end_of_element(elements.at(), elements.end());
      check(end >= elements.at() && end <= elements.end(), "an element ends in its text");
      return;
    }
    if (!string.escapes) continue;
    buffer.clear();
    if (unescape(string.inside, buffer)) ++counts()["escaped"];
    check(buffer.size() <= string.inside.size(), "an escape is longer than what it stands for");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::span<const uint8_t> input(data, size);
  const uint8_t flags = opgate::fuzz::take_byte(input);
  const std::vector<char> exact(input.begin(), input.end());  // no byte behind the text may be read
  const std::string_view text(exact.data(), exact.size());
  const Limits limits = flags & 2 ? Limits{4, 100, 3} : Limits{32, 1 << 20, 256};
  const Split result = split(text, flags & 1 ? Place::kMembers : Place::kInputs, limits);
  if (result.failure) {
    check(result.failure.begin <= result.failure.end && result.failure.end <= text.size(),
          "a failure lies in the text");
    ++counts()["failed"];
    return 0;
  }
  check(result.values.size() <= limits.values, "there are no more values than the limit");
  size_t before = 0;
  for (const Value& value : result.values) {
    check(before <= value.begin && value.begin < value.end && value.end <= text.size(), "values lie one after another");
    before = value.end;
    read_strings(text, value);
    if (!value.even) {
      ++counts()["uneven"];
      continue;
    }
    size_t count = 1;
    for (const int64_t dim : value.shape) {
      check(dim >= 0 && static_cast<size_t>(dim) <= text.size(), "a list has as many elements as commas");
      count = std::min(count * static_cast<size_t>(dim), kMostElements);
    }
    check(value.shape.size() <= limits.depth, "the lists are no deeper than the limit");
    if (count == kMostElements) continue;
    for (int type = 0; type <= static_cast<int>(Type::kBF16); ++type)
      read_numbers(text, value, count, static_cast<Type>(type), (flags & 4) != 0);
  }
  return 0;
}

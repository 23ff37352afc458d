// Splits any bytes as a ModelInferRequest, and reads the numbers of its tensors.
//
// The first byte of an input chooses the limits, the second how much room there is for the numbers.
#include <cstring>

#include "fuzz.h"
#include "protobuf_fields.h"

namespace {

using namespace opgate::protobuf;
using opgate::fuzz::check;
using opgate::fuzz::counts;

// A kind of repeated field in InferTensorContents.
struct Kind {
  uint64_t number;
  uint32_t type;
  size_t itemsize;
};
constexpr Kind kKinds[] = {{1, kVarint, 1}, {2, kVarint, 4},  {3, kVarint, 8}, {4, kVarint, 4},
                           {5, kVarint, 8}, {6, kFixed32, 4}, {7, kFixed64, 8}};

void read(const uint8_t* data, Span span, const Kind& kind, size_t room) {
  std::vector<char> memory(kind.itemsize * room);  // the sanitizer sees an item too much
  Target target{memory.data(), kind.itemsize, room, 0};
  if (!read_numbers(data, span, kind.number, kind.type, target)) {
    ++counts()["broken_numbers"];
    return;
  }
  check(target.count <= span.size, "each number takes a byte");
  std::vector<char> all(kind.itemsize * target.count);
  Target whole{all.data(), kind.itemsize, target.count, 0};
  check(read_numbers(data, span, kind.number, kind.type, whole), "what was read can be read again");
  check(whole.count == target.count, "the count doesn't depend on the room");
  const size_t common = kind.itemsize * std::min(room, target.count);
  check(common == 0 || std::memcmp(all.data(), memory.data(), common) == 0, "the numbers don't depend on the room");
  if (target.count != 0) ++counts()["numbers"];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::span<const uint8_t> input(data, size);
  const uint8_t flags = opgate::fuzz::take_byte(input);
  const size_t room = opgate::fuzz::take_byte(input);
  const std::vector<uint8_t> exact(input.begin(), input.end());
  const size_t most_envelope = flags & 1 ? 40 : 1 << 16, most_parts = flags & 2 ? 2 : 256;
  Parts parts;
  const Outcome outcome = split_message(exact.data(), exact.size(), most_envelope, most_parts, parts);
  if (outcome != Outcome::kFine) {
    ++counts()[outcome == Outcome::kBroken ? "broken" : "large"];
    return 0;
  }
  ++counts()["fine"];
  check(
      parts.envelope.size() <= most_envelope && parts.raws.size() <= most_parts && parts.contents.size() <= most_parts,
      "no part is over its limit");
  for (const Span& raw : parts.raws) check(raw.at + raw.size <= exact.size(), "a raw tensor lies in the message");
  for (const auto& [index, span] : parts.contents) {
    check(span.at + span.size <= exact.size() && index < exact.size(), "the contents lie in the message");
    for (const Kind& kind : kKinds) read(exact.data(), span, kind, room);
  }
  Parts again;
  const auto* envelope = reinterpret_cast<const uint8_t*>(parts.envelope.data());
  check(split_message(envelope, parts.envelope.size(), most_envelope, most_parts, again) == Outcome::kFine,
        "an envelope is a message");
  check(again.envelope == parts.envelope && again.raws.empty() && again.contents.empty(), "an envelope has no tensors");
  return 0;
}

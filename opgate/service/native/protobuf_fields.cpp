#include "protobuf_fields.h"

namespace opgate::protobuf {
namespace {

void append_varint(std::string& to, uint64_t value) {
  for (; value > 127; value >>= 7) to += static_cast<char>(value & 127 | 128);
  to += static_cast<char>(value);
}

}  // namespace

Outcome split_message(const uint8_t* data, size_t size, size_t most_envelope, size_t most_parts, Parts& parts) {
  Reader reader(data, {0, size});
  const auto* text = reinterpret_cast<const char*>(data);
  size_t inputs = 0;
  Field field;
  while (reader.next(field)) {
    if (field.type == kBytes && field.number == kRawInputContents) {
      parts.raws.push_back(field.value);
    } else if (field.type == kBytes && field.number == kInputs) {
      // The input without its contents.
      std::string rest;
      bool whole = true;
      Reader inner(data, field.value);
      Field part;
      while (inner.next(part)) {
        if (part.type == kBytes && part.number == kContents) {
          parts.contents.emplace_back(inputs, part.value);
          whole = false;
        } else {
          rest.append(text + part.begin, inner.at() - part.begin);
        }
        if (rest.size() > most_envelope || parts.contents.size() > most_parts) return Outcome::kLarge;
      }
      if (inner.is_broken()) return Outcome::kBroken;
      if (whole) {
        parts.envelope.append(text + field.begin, reader.at() - field.begin);
      } else {
        append_varint(parts.envelope, kInputs << 3 | kBytes);
        append_varint(parts.envelope, rest.size());
        parts.envelope += rest;
      }
      ++inputs;
    } else {
      if (reader.at() - field.begin > most_envelope) return Outcome::kLarge;
      parts.envelope.append(text + field.begin, reader.at() - field.begin);
    }
    if (parts.envelope.size() > most_envelope || parts.raws.size() > most_parts) return Outcome::kLarge;
  }
  return reader.is_broken() ? Outcome::kBroken : Outcome::kFine;
}

bool read_numbers(const uint8_t* data, Span span, uint64_t number, uint32_t type, Target& target) {
  Reader reader(data, span);
  Field field;
  while (reader.next(field)) {
    if (field.number != number) continue;
    if (field.type == kBytes) {
      if (type == kVarint) {
        Reader list(data, field.value);
        const size_t end = field.value.at + field.value.size;
        uint64_t value = 0;
        while (list.at() < end) {
          if (!list.varint(value)) return false;
          target.put(value);
        }
      } else {
        if (field.value.size % target.itemsize != 0) return false;
        target.copy(data + field.value.at, field.value.size / target.itemsize);
      }
    } else if (field.type == type) {
      if (type == kVarint) {
        target.put(field.varint);
      } else {
        target.copy(data + field.value.at, 1);
      }
    }
  }
  return !reader.is_broken();
}

}  // namespace opgate::protobuf

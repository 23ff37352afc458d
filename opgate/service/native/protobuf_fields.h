// Reads encoded ModelInferRequests. Nothing here knows Python. Source of the encoding:
// https://protobuf.dev/programming-guides/encoding/
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace opgate::protobuf {

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// The numbers of the fields that hold the data of tensors, by Triton's grpc_service.proto.
constexpr uint64_t kInputs = 5, kRawInputContents = 7;  // of a ModelInferRequest
constexpr uint64_t kContents = 5;                       // of an InferInputTensor

struct Span {
  size_t at, size;
};

// A field of an encoded message: its number and type, where it begins, and where its value lies.
struct Field {
  uint64_t number;
  uint32_t type;
  size_t begin;
  Span value;
  uint64_t varint;
};

// Reads the fields of a message, or of a part of one, in their order.
class Reader {
 public:
  Reader(const uint8_t* data, Span span) : data_(data), at_(span.at), end_(span.at + span.size) {}

  // Returns false at the end, and if the data is broken.
  bool next(Field& field) {
    if (at_ == end_) return false;
    field.begin = at_;
    uint64_t tag = 0, size = 0;
    if (!varint(tag)) return fail();
    field.number = tag >> 3;
    field.type = static_cast<uint32_t>(tag & 7);
    switch (field.type) {
      case kVarint: {
        const size_t at = at_;
        if (!varint(field.varint)) return fail();
        field.value = {at, at_ - at};
        return field.number != 0 || fail();
      }
      case kFixed64: size = 8; break;
      case kFixed32: size = 4; break;
      case kBytes:
        if (!varint(size)) return fail();
        break;
      default: return fail();
    }
    if (field.number == 0 || size > end_ - at_) return fail();
    field.value = {at_, static_cast<size_t>(size)};
    at_ += static_cast<size_t>(size);
    return true;
  }

  // Reads a varint that is no field, of a packed list.
  bool varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && at_ < end_; shift += 7) {
      const uint8_t byte = data_[at_++];
      value |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return true;
    }
    return false;
  }

  bool is_broken() const { return broken_; }
  size_t at() const { return at_; }

 private:
  bool fail() {
    broken_ = true;
    return false;
  }

  const uint8_t* data_;
  size_t at_, end_;
  bool broken_ = false;
};

// What `split` finds.
struct Parts {
  std::string envelope;
  std::vector<Span> raws;
  std::vector<std::pair<size_t, Span>> contents;  // with the index of the input
};

enum class Outcome { kFine, kBroken, kLarge };

// Splits a ModelInferRequest into its envelope and the places of its tensors' data. An envelope of more than
// `most_envelope` bytes, and more than `most_parts` tensors, are too large.
Outcome split_message(const uint8_t* data, size_t size, size_t most_envelope, size_t most_parts, Parts& parts);

// Puts numbers into memory, and counts those that have no room.
struct Target {
  char* data;
  size_t itemsize, room, count;

  void put(uint64_t bits) {
    if (count < room) {
      if (itemsize == 1) {
        data[count] = bits != 0;  // booleans
      } else {
        std::memcpy(data + count * itemsize, &bits, itemsize);  // the low bytes
      }
    }
    ++count;
  }

  void copy(const uint8_t* from, size_t items) {
    if (count < room) std::memcpy(data + count * itemsize, from, std::min(items, room - count) * itemsize);
    count += items;
  }
};

// Appends the entries of a repeated field of numbers, packed or not. Returns false if the data is broken.
bool read_numbers(const uint8_t* data, Span span, uint64_t number, uint32_t type, Target& target);

}  // namespace opgate::protobuf

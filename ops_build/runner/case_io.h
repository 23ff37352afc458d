// How the host programs of kernels read cases and write results: cases_file.py says the format.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/invoke.h"

namespace opgate::runner {

static_assert(std::endian::native == std::endian::little);

[[noreturn]] inline void fail(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(2);
}

template <typename T>
T read() {
  T value{};
  if (std::fread(&value, sizeof value, 1, stdin) != 1) fail("the cases end in the middle");
  return value;
}

inline std::vector<char> read_bytes(std::size_t count) {
  std::vector<char> bytes(count);
  if (count && std::fread(bytes.data(), 1, count, stdin) != count) fail("the cases end in the middle");
  return bytes;
}

inline std::string read_text() {
  const std::vector<char> bytes = read_bytes(read<std::uint32_t>());
  return {bytes.begin(), bytes.end()};
}

template <typename T>
std::vector<T> read_list() {
  std::vector<T> values(read<std::uint32_t>());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if constexpr (std::is_same_v<T, std::string>)
      values[i] = read_text();
    else if constexpr (std::is_same_v<T, bool>)
      values[i] = read<std::uint8_t>() != 0;
    else
      values[i] = read<T>();
  }
  return values;
}

inline AttributeValue read_attribute() {
  switch (read<std::uint8_t>()) {
    case 0: return read<std::int64_t>();
    case 1: return read<double>();
    case 2: return read<std::uint8_t>() != 0;
    case 3: return read_text();
    case 4: return read_list<std::int64_t>();
    case 5: return read_list<double>();
    case 6: return read_list<bool>();
    case 7: return read_list<std::string>();
    default: fail("an attribute of an unknown kind");
  }
}

inline void write_bytes(const void* bytes, std::size_t count) {
  if (count && std::fwrite(bytes, 1, count, stdout) != count) fail("a result can't be written");
}

template <typename T>
void write(T value) {
  write_bytes(&value, sizeof value);
}

/// A tensor in host memory. The elements of `str` are `texts`, those of all others `bytes`.
struct HostTensor {
  DType dtype = DType::f32;
  Dims dims;
  std::vector<char> bytes;
  std::vector<std::string> texts;
};

inline std::unique_ptr<HostTensor> read_tensor() {
  if (!read<std::uint8_t>()) return nullptr;
  auto tensor = std::make_unique<HostTensor>();
  const auto dtype = read<std::uint8_t>();
  if (dtype >= kDTypeCount) fail("a tensor of an unknown type");
  tensor->dtype = static_cast<DType>(dtype);
  for (auto rank = read<std::uint32_t>(); rank > 0; --rank) tensor->dims.push_back(read<std::int64_t>());
  if (tensor->dtype == DType::str) {
    const auto count = Tensor(nullptr, tensor->dtype, tensor->dims).size();
    for (std::int64_t i = 0; i < count; ++i) tensor->texts.push_back(read_text());
  } else {
    tensor->bytes = read_bytes(bytes_of(tensor->dtype, tensor->dims));
  }
  return tensor;
}

inline void write_tensor(const HostTensor* tensor) {
  write<std::uint8_t>(tensor != nullptr);
  if (!tensor) return;
  write(static_cast<std::uint8_t>(tensor->dtype));
  write(static_cast<std::uint32_t>(tensor->dims.size()));
  for (const std::int64_t dim : tensor->dims) write(dim);
  write_bytes(tensor->bytes.data(), tensor->bytes.size());
  for (const std::string& text : tensor->texts) {
    write(static_cast<std::uint32_t>(text.size()));
    write_bytes(text.data(), text.size());
  }
}

struct CaseToRun {
  std::string op;
  std::uint64_t wanted = 0;  ///< bit i: somebody wants output i
  std::vector<std::unique_ptr<HostTensor>> inputs;
  std::vector<std::pair<std::string, AttributeValue>> attributes;
};

/// Reads the next case. Returns false at the end of the file.
inline bool read_case(CaseToRun& wanted) {
  const int first = std::getc(stdin);
  if (first == EOF) return false;
  std::ungetc(first, stdin);
  wanted.op = read_text();
  wanted.wanted = read<std::uint64_t>();
  wanted.inputs.resize(read<std::uint32_t>());
  for (auto& input : wanted.inputs) input = read_tensor();
  for (auto count = read<std::uint32_t>(); count > 0; --count) {
    std::string name = read_text();
    wanted.attributes.emplace_back(std::move(name), read_attribute());
  }
  return true;
}

inline Status make_attributes(const Signature& signature, const CaseToRun& wanted, Attributes& attributes) {
  std::vector<std::optional<AttributeValue>> values(signature.attributes.size());
  for (const auto& [name, value] : wanted.attributes) {
    const auto found = std::ranges::find(signature.attributes, name, &Attribute::name);
    if (found == signature.attributes.end()) return Status::invalid("there is no attribute '" + name + "'");
    values[static_cast<std::size_t>(found - signature.attributes.begin())] = value;
  }
  return Attributes::make(signature, std::move(values), attributes);
}

/// Begins a result: with the message of an error, or with "" for a result that has outputs.
inline void write_error(const std::string& message) {
  write(static_cast<std::uint32_t>(message.size()));
  write_bytes(message.data(), message.size());
}

}  // namespace opgate::runner

// How the host programs of kernels read cases and write results: cases_file.py says the format.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "op_call/invoke.h"
#include "op_call/packed_attributes.h"
#include "op_call/table_json.h"

namespace opgate::runner {

[[noreturn]] inline void fail(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(2);
}

/// The standard input, as a source of packed values.
struct StandardInput {
  void read(void* target, std::size_t count) {
    if (count && std::fread(target, 1, count, stdin) != count) fail("the cases end in the middle");
  }
};
inline StandardInput standard_input;

template <typename T>
T read() {
  return packed::read<T>(standard_input);
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
    for (std::int64_t i = 0; i < count; ++i) tensor->texts.push_back(packed::read_text(standard_input));
  } else {
    tensor->bytes.resize(bytes_of(tensor->dtype, tensor->dims));
    standard_input.read(tensor->bytes.data(), tensor->bytes.size());
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
  packed::NamedAttributes attributes;
};

/// Reads the next case. Returns false at the end of the file.
inline bool read_case(CaseToRun& wanted) {
  const int first = std::getc(stdin);
  if (first == EOF) return false;
  std::ungetc(first, stdin);
  wanted.op = packed::read_text(standard_input);
  wanted.wanted = read<std::uint64_t>();
  wanted.inputs.resize(read<std::uint32_t>());
  for (auto& input : wanted.inputs) input = read_tensor();
  wanted.attributes = packed::read_attributes(standard_input);
  return true;
}

/// Prints the op table as JSON if the option --table asks for it, and returns whether it does.
inline bool printed_table(int count, char** arguments) {
  if (count != 2 || std::string_view(arguments[1]) != "--table") return false;
  std::puts(table_json(Table::instance()).c_str());
  return true;
}

/// Begins a result: with the message of an error, or with "" for a result that has outputs.
inline void write_error(const std::string& message) {
  write(static_cast<std::uint32_t>(message.size()));
  write_bytes(message.data(), message.size());
}

/// Ends a result that has outputs: the time of a call and the bytes of its inputs and outputs, if they were measured.
inline void write_end(double milliseconds = 0, std::uint64_t bytes = 0) {
  write(milliseconds);
  write(bytes);
}

/// Reads all cases. answer(op, attributes, case) writes the result of each.
template <typename Answer>
void answer_cases(const Answer& answer) {
  for (CaseToRun wanted; read_case(wanted); wanted = {}) {
    const Op* const op = Table::instance().find(wanted.op);
    Attributes attributes;
    const Status status = op ? packed::make_attributes(op->signature, wanted.attributes, attributes)
                             : Status::invalid("there is no op " + wanted.op);
    if (status.ok())
      answer(*op, attributes, wanted);
    else
      write_error(status.message());
    std::fflush(stdout);
  }
}

}  // namespace opgate::runner

// Reads the shared cases of tests/ops_build/walk_cases.txt and runs them through a walk over any algebra.
#pragma once

#include <gtest/gtest.h>

#include <charconv>
#include <deque>
#include <fstream>
#include <map>
#include <sstream>

#include "signature/parser.h"
#include "signature/walk.h"

namespace opgate::test {

struct WalkCase {
  std::string title, signature, error;
  std::vector<std::string> inputs, outputs;
  std::map<std::string, std::int64_t> attributes;
};

inline std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

inline std::vector<WalkCase> walk_cases() {
  std::ifstream file(WALK_CASES);
  std::vector<WalkCase> cases;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::size_t space = line.find(' ');
    const std::string key = line.substr(0, space), rest = line.substr(space + 1);
    if (key == "==") {
      cases.emplace_back().title = rest;
    } else if (key == "in") {
      cases.back().inputs = words_of(rest);
    } else if (key == "out") {
      cases.back().outputs = words_of(rest);
    } else if (key == "error") {
      cases.back().error = rest;
    } else if (key == "attr") {
      for (const std::string& word : words_of(rest)) {
        const std::size_t equals = word.find('=');
        cases.back().attributes[word.substr(0, equals)] = std::stoll(word.substr(equals + 1));
      }
    } else {
      cases.back().signature = line;
    }
  }
  return cases;
}

inline std::optional<std::int64_t> number_in(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

/// The parts of a text such as "f32[4,rows]".
struct TensorText {
  std::string dtype;
  bool ranked = true;
  std::vector<std::string> dims;
  std::optional<std::int64_t> value;

  explicit TensorText(const std::string& text) {
    const std::size_t open = text.find('['), close = text.find(']');
    dtype = text.substr(0, open);
    const std::string inside = text.substr(open + 1, close - open - 1);
    ranked = inside != "*";
    std::istringstream stream(ranked ? inside : "");
    for (std::string dim; std::getline(stream, dim, ',');) dims.push_back(dim);
    if (close + 1 < text.size()) value = std::stoll(text.substr(close + 2));
  }
};

/// The inputs of a case in the form that a walk takes. `size_of` turns "4", "rows" or "?" into a size.
template <typename Size>
class CaseInputs {
 public:
  template <typename SizeOf>
  CaseInputs(const WalkCase& walk_case, SizeOf&& size_of) {
    for (const std::string& text : walk_case.inputs) {
      KnownInput<Size>& input = known.emplace_back();
      if (text == "-") continue;
      const TensorText tensor(text);
      input.present = true;
      input.dtype = dtype_named(tensor.dtype);
      if (tensor.value) input.value = size_of(std::to_string(*tensor.value));
      if (!tensor.ranked) continue;
      std::vector<Size>& dims = dims_.emplace_back();
      for (const std::string& dim : tensor.dims) dims.push_back(size_of(dim));
      input.dims = dims;
    }
  }

  std::vector<KnownInput<Size>> known;

 private:
  std::deque<std::vector<Size>> dims_;
};

/// Returns whether all sizes and scalars of a case's inputs are known numbers.
inline bool all_known(const WalkCase& walk_case) {
  for (const std::string& text : walk_case.inputs) {
    if (text == "-") continue;
    const TensorText tensor(text);
    if (!tensor.ranked || (tensor.dims.empty() && tensor.dtype[0] == 'i' && !tensor.value)) return false;
    for (const std::string& dim : tensor.dims) {
      if (!number_in(dim)) return false;
    }
  }
  return true;
}

/// Returns an output as a text such as "f32[v<=4,3]".
template <typename Algebra>
std::string output_text(Walk<Algebra>& walk, const Output& output) {
  const Signature& signature = walk.signature();
  std::string text = std::string(name_of(walk.dtype_of(output.type).value_or(DType::str))) + "[";
  if (!walk.knows_rank(output)) return text + "*]";
  const auto append = [&](const std::string& size) { text += (text.back() == '[' ? "" : ",") + size; };
  for (const OutputDim& dim : output.dims) {
    if (dim.kind == OutputDim::Kind::ellipsis) {
      for (const auto& size : walk.binding().ellipsis) append(walk.algebra().text(size));
    } else if (dim.kind == OutputDim::Kind::bounded) {
      std::optional<typename Algebra::Size> bound;
      EXPECT_TRUE(walk.bound_of(dim.slot, bound).ok());
      append(signature.slots[dim.slot].name + "<=" + (bound ? walk.algebra().text(*bound) : "?"));
    } else {
      std::optional<typename Algebra::Size> size;
      EXPECT_TRUE(walk.evaluate(dim.expr, size).ok());
      const bool kernel_size =
          dim.expr.kind == Expr::Kind::name && signature.slots[dim.expr.slot].kind == Slot::Kind::kernel;
      append(size ? walk.algebra().text(*size) : kernel_size ? signature.slots[dim.expr.slot].name : "?");
    }
  }
  return text + "]";
}

/// Runs a case. `kernel_size(name, bound)` returns the algebra's size for a size that the kernel binds, or nullopt.
template <typename Algebra, typename SizeOf, typename KernelSize>
void run_case(const WalkCase& walk_case, Algebra algebra, SizeOf&& size_of, KernelSize&& kernel_size) {
  SCOPED_TRACE(walk_case.title);
  const Signature signature = parse_signature(walk_case.signature);
  const CaseInputs<typename Algebra::Size> inputs(walk_case, size_of);
  Walk<Algebra> walk(signature, algebra);
  const auto attribute = [&](int index) -> std::optional<std::int64_t> {
    const Attribute& stated = signature.attributes[static_cast<std::size_t>(index)];
    const auto found = walk_case.attributes.find(stated.name);
    if (found != walk_case.attributes.end()) return found->second;
    return stated.required ? std::nullopt : std::optional(std::get<std::int64_t>(stated.default_value));
  };
  std::vector<std::string> outputs;
  const auto walked = [&]() -> Status {
    OPGATE_RETURN_IF_ERROR(walk.bind(inputs.known, attribute));
    for (std::size_t s = 0; s < signature.slots.size(); ++s) {
      if (signature.slots[s].kind != Slot::Kind::kernel) continue;
      std::optional<typename Algebra::Size> bound;
      OPGATE_RETURN_IF_ERROR(walk.bound_of(static_cast<int>(s), bound));
      walk.set_kernel_size(static_cast<int>(s), kernel_size(signature.slots[s].name, bound));
    }
    for (const Output& output : signature.outputs) {
      InlineVector<typename Algebra::Size, 8> dims;
      bool complete = false;
      OPGATE_RETURN_IF_ERROR(walk.output_dims(output, dims, complete));
      outputs.push_back(output_text(walk, output));
    }
    return {};
  };
  const Status status = walked();
  EXPECT_EQ(status.message(), walk_case.error);
  if (status.ok()) EXPECT_EQ(outputs, walk_case.outputs);
}

}  // namespace opgate::test

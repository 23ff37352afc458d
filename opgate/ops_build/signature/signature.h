// A parsed signature. parser.h makes it from text. docs/signatures.md says what its parts mean.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "dtype.h"

namespace opgate {

/// A size: a number, a name, or an operation on two sizes. Division rounds down. Dividing by zero is an error.
struct Expr {
  enum class Kind { literal, name, add, sub, mul, div, mod, min, max, ceildiv };
  Kind kind = Kind::literal;
  std::int64_t value = 0;  ///< of a literal
  int slot = -1;           ///< of a name: its index in Signature::slots
  std::vector<Expr> operands;
  int column = 0;
};

/// A named size. Its value comes from a dim of an input, from an integer attribute, from an integer scalar in host
/// memory (a `const` input of rank 0), or from the kernel (`v<=n`).
struct Slot {
  enum class Kind { dim, attribute, scalar_input, kernel };
  std::string name;
  Kind kind = Kind::dim;
  int index = -1;  ///< the index of the attribute or of the input
  int column = 0;
};

struct InputDim {
  enum class Kind { ellipsis, any, name, expr };
  Kind kind = Kind::ellipsis;
  int slot = -1;                      ///< of a name
  std::optional<Expr> default_value;  ///< of a name in an optional input
  Expr expr;                          ///< is checked and gives no name a value

  /// Whether it stands for any number of dims: `...`, which are the same in all tensors, or `*`, which are not.
  bool is_many() const { return kind == Kind::ellipsis || kind == Kind::any; }
};

struct OutputDim {
  enum class Kind { ellipsis, expr, bounded };
  Kind kind = Kind::ellipsis;
  int slot = -1;  ///< of the name that the kernel sets
  Expr expr;      ///< the size, or its upper bound
  int column = 0;
};

/// A dtype, or the index of a type variable.
struct ElementType {
  int variable = -1;
  DType dtype = DType::f32;
};

struct TypeVariable {
  std::string name;
  std::vector<DType> dtypes;
  int column = 0;
};

struct Input {
  std::string name;
  bool optional = false;
  bool variadic = false;
  bool host = false;  ///< `const`: in host memory on every device
  ElementType type;
  std::vector<InputDim> dims;
};

struct Output {
  std::string name;
  bool optional = false;
  bool on_request = false;  ///< optional, and an engine that returns all outputs leaves it out unless it is asked for
  ElementType type;
  std::vector<OutputDim> dims;
};

/// The value of an attribute. The value of a choice is its text.
using AttributeValue = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>,
                                    std::vector<double>, std::vector<bool>, std::vector<std::string>>;

struct Attribute {
  enum class Kind { integer, number, boolean, text, choice };
  std::string name;
  Kind kind = Kind::integer;
  bool list = false;
  std::int64_t length = -1;  ///< of a list; -1: any length
  std::vector<std::string> choices;
  bool required = true;
  AttributeValue default_value;
};

/// Columns count from 1. Messages name them.
struct Signature {
  std::string text;
  std::string name;
  std::vector<TypeVariable> type_variables;
  std::vector<Input> inputs;
  std::vector<Attribute> attributes;
  std::vector<Output> outputs;
  std::vector<Slot> slots;
  bool checks_expressions = false;  ///< an input has a dim that is an expression
};

/// Whether every tensor has the dims `[...]`. Such an op computes element i of an output from the elements i of the
/// inputs. So an engine may store the elements in any order that is the same for all tensors.
inline bool is_elementwise(const Signature& signature) {
  const auto all = [](const auto& tensors) {
    return std::ranges::all_of(tensors, [](const auto& tensor) {
      return tensor.dims.size() == 1 &&
             tensor.dims[0].kind == std::remove_cvref_t<decltype(tensor.dims[0])>::Kind::ellipsis;
    });
  };
  return !signature.inputs.empty() && all(signature.inputs) && all(signature.outputs);
}

}  // namespace opgate

// The one line that states an op, parsed.
//
// Grammar (EBNF; white space is free between tokens):
//
//   sig    = [ "<" tvar { "," tvar } ">" ] Name "(" [ in { "," in } ] [ ";" attr { "," attr } ] ")"
//            "->" "(" out { "," out } ")" ;
//   tvar   = Upper ":" dtype { "|" dtype } ;
//   dtype  = "f16"|"bf16"|"f32"|"f64"|"i8"|"u8"|"i32"|"i64"|"bool"|"str" ;
//   in     = name [ "?" | "*" ] ":" [ "const" ] (dtype|Upper) "[" [ idim { "," idim } ] "]" ;
//   idim   = "..." | name [ "=" expr ] | expr ;
//   out    = name [ "?" ] ":" (dtype|Upper) "[" [ odim { "," odim } ] "]" ;
//   odim   = "..." | expr | name "<=" expr ;
//   expr   = term { ("+"|"-") term } ;
//   term   = fac { ("*"|"/"|"%") fac } ;
//   fac    = int | name | "(" expr ")" | ("min"|"max"|"ceildiv") "(" expr "," expr ")" ;
//   attr   = name ":" atype [ "=" lit ] ;
//   atype  = ("int"|"float"|"bool"|"str") [ "[" [ int ] "]" ] | "{" ident { "|" ident } "}" ;
//   lit    = number | "true" | "false" | string | ident | "[" [ lit { "," lit } ] "]" ;
//
// What the names mean is written once, in docs/signatures.md.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "dtype.h"

namespace opgate {

/// A sentence about what is wrong with a signature and the 1-based column where.
class SignatureError : public std::runtime_error {
 public:
  SignatureError(int column, const std::string& what) : std::runtime_error(what), column(column) {}
  int column;
};

/// A size: a number, a name, or an operation on two sizes. Division and remainder floor; a zero divisor is an error.
struct Expr {
  enum class Kind { literal, name, add, sub, mul, div, mod, min, max, ceildiv };
  Kind kind = Kind::literal;
  std::int64_t value = 0;  ///< of a literal
  int slot = -1;           ///< of a name: its place in Signature::slots
  std::vector<Expr> operands;
  int column = 0;
};

/// A named size. Sizes are bound by inputs' dims, by integer attributes, by integer scalars in host memory (`const`
/// inputs of rank 0), or by the kernel (`v<=n`).
struct Slot {
  enum class Kind { dim, attribute, scalar_input, kernel };
  std::string name;
  Kind kind = Kind::dim;
  int index = -1;  ///< of the attribute or of the input
  int column = 0;
};

struct InputDim {
  enum class Kind { ellipsis, name, expr };
  Kind kind = Kind::ellipsis;
  int slot = -1;                    ///< of a name
  std::vector<Expr> default_value;  ///< of a name in an optional input: none or one
  Expr expr;                        ///< checked, binds nothing
};

struct OutputDim {
  enum class Kind { ellipsis, expr, bounded };
  Kind kind = Kind::ellipsis;
  int slot = -1;  ///< of the name that the kernel binds
  Expr expr;      ///< the size, or the bound
};

/// A dtype, or the place of a type variable.
struct ElementType {
  int variable = -1;
  DType dtype = DType::f32;
};

struct TypeVariable {
  std::string name;
  std::vector<DType> dtypes;
};

struct Input {
  std::string name;
  bool optional = false;
  bool variadic = false;
  bool host = false;  ///< `const`: in host memory whatever the device
  ElementType type;
  std::vector<InputDim> dims;
};

struct Output {
  std::string name;
  bool optional = false;
  ElementType type;
  std::vector<OutputDim> dims;
};

/// The value of an attribute. A choice is held as its text.
using AttributeValue = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>,
                                    std::vector<double>, std::vector<bool>, std::vector<std::string>>;

struct Attribute {
  enum class Kind { integer, number, boolean, text, choice };
  std::string name;
  Kind kind = Kind::integer;
  bool list = false;
  std::int64_t length = -1;  ///< of a list; -1: any
  std::vector<std::string> choices;
  bool required = true;
  AttributeValue default_value;
};

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

/// Parses and checks a signature. Throws SignatureError.
Signature parse_signature(std::string_view text);

/// The attribute's type as written in a signature, "float[3]".
std::string type_text(const Attribute& attribute);

}  // namespace opgate

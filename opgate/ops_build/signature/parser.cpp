#include "parser.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>

#include "lexer.h"
#include "names.h"
#include "signature_text.h"

namespace opgate {
namespace {

std::string described(const Token& token) {
  return token.kind == Token::Kind::end ? "the end of the signature" : quoted(token.text);
}

class Parser {
 public:
  explicit Parser(std::string_view text) : tokens_(tokens_of(text)) { signature_.text = std::string(text); }

  Signature parse() {
    if (accept("<")) {
      do parse_type_variable();
      while (accept(","));
      expect(">");
    }
    const Token name = identifier("the op's name");
    if (!std::isupper(static_cast<unsigned char>(name.text[0]))) {
      fail(name.column, "an op's name is CamelCase, got " + quoted(name.text));
    }
    signature_.name = name.text;
    expect("(");
    if (!at(")") && !at(";")) {
      do parse_input();
      while (accept(","));
    }
    if (accept(";")) {
      do parse_attribute();
      while (accept(","));
    }
    expect(")");
    expect("->");
    expect("(");
    do parse_output();
    while (accept(","));
    expect(")");
    if (peek().kind != Token::Kind::end)
      fail(peek().column, "expected the end of the signature, got " + described(peek()));
    resolve_names(signature_);
    return std::move(signature_);
  }

 private:
  // Tokens.
  const Token& peek(int ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  bool at(std::string_view text, int ahead = 0) const {
    return peek(ahead).kind == Token::Kind::punctuation && peek(ahead).text == text;
  }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool accept(std::string_view text) {
    if (!at(text)) return false;
    take();
    return true;
  }
  void expect(std::string_view text) {
    if (!accept(text)) fail(peek().column, "expected " + quoted(text) + ", got " + described(peek()));
  }
  Token identifier(const std::string& what) {
    if (peek().kind != Token::Kind::identifier) fail(peek().column, "expected " + what + ", got " + described(peek()));
    return take();
  }
  void claim(const Token& name, const std::string& what) {
    if (!claimed_.insert(name.text).second) fail(name.column, what + " " + quoted(name.text) + " is named twice");
  }

  // Declarations.
  void parse_type_variable() {
    const Token name = identifier("a type variable");
    if (!std::isupper(static_cast<unsigned char>(name.text[0]))) {
      fail(name.column, "a type variable begins with a capital letter, got " + quoted(name.text));
    }
    for (const TypeVariable& other : signature_.type_variables) {
      if (other.name == name.text) fail(name.column, "type variable " + quoted(name.text) + " is named twice");
    }
    TypeVariable variable{name.text, {}, name.column};
    expect(":");
    do {
      const Token token = identifier("a dtype");
      const auto dtype = dtype_named(token.text);
      if (!dtype) fail(token.column, unknown_dtype(token.text));
      if (std::ranges::count(variable.dtypes, *dtype))
        fail(token.column, "dtype " + quoted(token.text) + " is listed twice");
      variable.dtypes.push_back(*dtype);
    } while (accept("|"));
    signature_.type_variables.push_back(variable);
  }

  static std::string unknown_dtype(const std::string& got) {
    std::string known;
    for (std::string_view name : kDTypeNames) known += (known.empty() ? "" : ", ") + std::string(name);
    return "expected a dtype (" + known + "), got " + quoted(got);
  }

  ElementType parse_element_type() {
    const Token token = identifier("a dtype or a type variable");
    if (const auto dtype = dtype_named(token.text)) return {-1, *dtype};
    for (std::size_t i = 0; i < signature_.type_variables.size(); ++i) {
      if (signature_.type_variables[i].name == token.text) return {static_cast<int>(i), DType::f32};
    }
    fail(token.column, unknown_dtype(token.text) + (std::isupper(static_cast<unsigned char>(token.text[0]))
                                                        ? ", which is no declared type variable either"
                                                        : ""));
  }

  void parse_input() {
    Input input;
    const Token name = identifier("an input's name");
    claim(name, "input");
    input.name = name.text;
    if (!signature_.inputs.empty()) {
      const Input& before = signature_.inputs.back();
      if (before.variadic) fail(name.column, "no input may follow the variadic input " + quoted(before.name));
      if (before.optional && !at("?")) {
        fail(name.column,
             "input " + quoted(name.text) + " must be optional, it follows the optional input " + quoted(before.name));
      }
    }
    input.optional = accept("?");
    if (at("*") && input.optional) fail(peek().column, "an input is optional or variadic, not both");
    input.variadic = accept("*");
    expect(":");
    if (peek().kind == Token::Kind::identifier && peek().text == "const") {
      take();
      input.host = true;
    }
    input.type = parse_element_type();
    expect("[");
    if (!at("]")) {
      do parse_input_dim(input);
      while (accept(","));
    }
    expect("]");
    signature_.inputs.push_back(std::move(input));
  }

  void parse_input_dim(Input& input) {
    InputDim dim;
    const int column = peek().column;
    if (at("...") || at("*")) {
      if (std::ranges::any_of(input.dims, &InputDim::is_many))
        fail(column, "'...' or '*' stands at most once in an input");
      dim.kind = take().text == "*" ? InputDim::Kind::any : InputDim::Kind::ellipsis;
    } else if (peek().kind == Token::Kind::identifier && (at(",", 1) || at("]", 1) || at("=", 1))) {
      const Token name = take();
      dim.kind = InputDim::Kind::name;
      dim.slot = slot(name);
      if (accept("=")) {
        if (!input.optional) {
          fail(name.column,
               "only an optional input's dim can have a default, and " + quoted(input.name) + " is required");
        }
        dim.default_value = parse_expr();
      }
    } else {
      dim.kind = InputDim::Kind::expr;
      dim.expr = parse_expr();
      signature_.checks_expressions = true;
    }
    input.dims.push_back(std::move(dim));
  }

  void parse_output() {
    Output output;
    const Token name = identifier("an output's name");
    // An output may have the name of an input.
    for (const Output& other : signature_.outputs) {
      if (other.name == name.text) fail(name.column, "output " + quoted(name.text) + " is named twice");
    }
    output.name = name.text;
    if (!signature_.outputs.empty() && signature_.outputs.back().optional && !at("?")) {
      fail(name.column, "output " + quoted(name.text) + " must be optional, it follows the optional output " +
                            quoted(signature_.outputs.back().name));
    }
    output.optional = accept("?");
    output.on_request = output.optional && accept("?");
    if (!output.on_request && !signature_.outputs.empty() && signature_.outputs.back().on_request) {
      fail(name.column, "output " + quoted(name.text) + " must have ??, it follows " +
                            quoted(signature_.outputs.back().name + "??"));
    }
    expect(":");
    output.type = parse_element_type();
    expect("[");
    if (!at("]")) {
      do parse_output_dim(output);
      while (accept(","));
    }
    expect("]");
    signature_.outputs.push_back(std::move(output));
  }

  void parse_output_dim(Output& output) {
    OutputDim dim;
    dim.column = peek().column;
    if (accept("...")) {
      const auto is_ellipsis = [](const OutputDim& other) { return other.kind == OutputDim::Kind::ellipsis; };
      if (std::ranges::any_of(output.dims, is_ellipsis)) fail(dim.column, "'...' stands at most once in an output");
    } else if (peek().kind == Token::Kind::identifier && at("<=", 1)) {
      const Token name = take();
      take();
      dim.kind = OutputDim::Kind::bounded;
      dim.slot = slot(name);
      dim.expr = parse_expr();
    } else {
      dim.kind = OutputDim::Kind::expr;
      dim.expr = parse_expr();
    }
    output.dims.push_back(std::move(dim));
  }

  // Expressions.
  Expr parse_expr() {
    Expr left = parse_term();
    while (at("+") || at("-")) {
      const Token op = take();
      left = binary(op.text == "+" ? Expr::Kind::add : Expr::Kind::sub, std::move(left), parse_term(), op.column);
    }
    return left;
  }

  Expr parse_term() {
    Expr left = parse_factor();
    while (at("*") || at("/") || at("%")) {
      const Token op = take();
      const Expr::Kind kind = op.text == "*" ? Expr::Kind::mul : op.text == "/" ? Expr::Kind::div : Expr::Kind::mod;
      left = binary(kind, std::move(left), parse_factor(), op.column);
    }
    return left;
  }

  Expr binary(Expr::Kind kind, Expr left, Expr right, int column) {
    // The tree of a chain is as deep as the chain is long, and functions that walk the tree recurse.
    if (++operators_ > 256) fail(column, "more than 256 operators in a signature");
    Expr expr;
    expr.kind = kind;
    expr.column = column;
    expr.operands.push_back(std::move(left));
    expr.operands.push_back(std::move(right));
    return expr;
  }

  Expr parse_factor() {
    Nesting nesting(*this);
    if (accept("(")) {
      Expr inner = parse_expr();
      expect(")");
      return inner;
    }
    const Token token = take();
    Expr expr;
    expr.column = token.column;
    if (token.kind == Token::Kind::number) {
      expr.value = integer(token);
      return expr;
    }
    if (token.kind != Token::Kind::identifier) {
      fail(token.column, "expected a size (a number, a name or an expression), got " + described(token));
    }
    if (at("(")) return parse_call(token);
    expr.kind = Expr::Kind::name;
    expr.slot = slot(token);
    return expr;
  }

  Expr parse_call(const Token& function) {
    Expr::Kind kind;
    if (function.text == "min")
      kind = Expr::Kind::min;
    else if (function.text == "max")
      kind = Expr::Kind::max;
    else if (function.text == "ceildiv")
      kind = Expr::Kind::ceildiv;
    else
      fail(function.column, "expected min, max or ceildiv, got " + quoted(function.text));
    expect("(");
    Expr left = parse_expr();
    expect(",");
    Expr right = parse_expr();
    expect(")");
    return binary(kind, std::move(left), std::move(right), function.column);
  }

  // Attributes.
  void parse_attribute() {
    Attribute attribute;
    const Token name = identifier("an attribute's name");
    claim(name, "attribute");
    attribute.name = name.text;
    expect(":");
    if (accept("{")) {
      attribute.kind = Attribute::Kind::choice;
      do {
        const Token choice = identifier("a choice");
        if (std::ranges::count(attribute.choices, choice.text))
          fail(choice.column, "choice " + quoted(choice.text) + " is listed twice");
        attribute.choices.push_back(choice.text);
      } while (accept("|"));
      expect("}");
    } else {
      parse_attribute_type(attribute);
    }
    if (accept("=")) {
      attribute.required = false;
      attribute.default_value = attribute.list ? list_literal(attribute) : literal(attribute);
    }
    signature_.attributes.push_back(std::move(attribute));
  }

  void parse_attribute_type(Attribute& attribute) {
    const Token type = identifier("int, float, bool, str or {choices}");
    if (type.text == "int")
      attribute.kind = Attribute::Kind::integer;
    else if (type.text == "float")
      attribute.kind = Attribute::Kind::number;
    else if (type.text == "bool")
      attribute.kind = Attribute::Kind::boolean;
    else if (type.text == "str")
      attribute.kind = Attribute::Kind::text;
    else
      fail(type.column, "expected int, float, bool, str or {choices}, got " + quoted(type.text));
    if (!accept("[")) return;
    attribute.list = true;
    if (!at("]")) {
      const Token length = take();
      if (length.kind != Token::Kind::number) fail(length.column, "expected a list's length, got " + described(length));
      attribute.length = integer(length);
    }
    expect("]");
  }

  static std::int64_t integer(const Token& token, bool negative = false) {
    const std::string text = (negative ? "-" : "") + token.text;
    std::int64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc::result_out_of_range) fail(token.column, text + " does not fit 64 bits");
    if (error != std::errc() || stop != end) fail(token.column, "expected an integer, got " + quoted(text));
    return value;
  }

  /// A float attribute has single precision, as in ONNX. The default is rounded here, so that every engine has the
  /// same.
  static double number(const Token& token) {
    float value = 0;
    const char* end = token.text.data() + token.text.size();
    const auto [stop, error] = std::from_chars(token.text.data(), end, value);
    if (error != std::errc() || stop != end) fail(token.column, "expected a number, got " + quoted(token.text));
    return value;
  }

  AttributeValue literal(const Attribute& attribute) {
    const bool negative = accept("-");
    const Token token = take();
    const bool numeric = attribute.kind == Attribute::Kind::integer || attribute.kind == Attribute::Kind::number;
    const auto wrong = [&]() {
      fail(token.column,
           "expected a default of type " + type_text(element_of(attribute)) + ", got " + described(token));
    };
    if (negative && !numeric) wrong();
    switch (attribute.kind) {
      case Attribute::Kind::integer:
        if (token.kind != Token::Kind::number) wrong();
        return integer(token, negative);
      case Attribute::Kind::number:
        if (token.kind != Token::Kind::number) wrong();
        return negative ? -number(token) : number(token);
      case Attribute::Kind::boolean:
        if (token.kind != Token::Kind::identifier || (token.text != "true" && token.text != "false")) wrong();
        return token.text == "true";
      case Attribute::Kind::text:
        if (token.kind != Token::Kind::string) wrong();
        return token.text;
      case Attribute::Kind::choice:
        if (token.kind != Token::Kind::identifier || !std::ranges::count(attribute.choices, token.text)) wrong();
        return token.text;
    }
    fail(token.column, "unknown attribute kind");
  }

  static Attribute element_of(Attribute attribute) {
    attribute.list = false;
    return attribute;
  }

  AttributeValue list_literal(const Attribute& attribute) {
    const int column = peek().column;
    std::vector<AttributeValue> values;
    expect("[");
    if (!at("]")) {
      do values.push_back(literal(attribute));
      while (accept(","));
    }
    expect("]");
    if (attribute.length >= 0 && static_cast<std::int64_t>(values.size()) != attribute.length) {
      fail(column, "expected " + std::to_string(attribute.length) + " values, got " + std::to_string(values.size()));
    }
    switch (attribute.kind) {
      case Attribute::Kind::integer: return elements<std::int64_t>(values);
      case Attribute::Kind::number: return elements<double>(values);
      case Attribute::Kind::boolean: return elements<bool>(values);
      default: return elements<std::string>(values);
    }
  }

  template <typename T>
  static std::vector<T> elements(const std::vector<AttributeValue>& values) {
    std::vector<T> typed;
    for (const AttributeValue& value : values) typed.push_back(std::get<T>(value));
    return typed;
  }

  /// The index of a named size. The first use of a name creates the slot.
  int slot(const Token& name) {
    for (std::size_t i = 0; i < signature_.slots.size(); ++i) {
      if (signature_.slots[i].name == name.text) return static_cast<int>(i);
    }
    signature_.slots.push_back({name.text, Slot::Kind::dim, -1, name.column});
    return static_cast<int>(signature_.slots.size()) - 1;
  }

  /// Counts how deep expressions are nested, so that no signature can exhaust the stack.
  struct Nesting {
    explicit Nesting(Parser& parser) : parser(parser) {
      if (++parser.depth_ > 64) fail(parser.peek().column, "an expression nested more than 64 deep");
    }
    ~Nesting() { --parser.depth_; }
    Parser& parser;
  };

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
  int operators_ = 0;
  Signature signature_;
  std::set<std::string> claimed_;
};

}  // namespace

Signature parse_signature(std::string_view text) { return Parser(text).parse(); }

}  // namespace opgate

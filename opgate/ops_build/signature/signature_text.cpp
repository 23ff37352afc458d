#include "signature_text.h"

#include <array>
#include <charconv>

namespace opgate {
namespace {

std::string element_text(std::int64_t value) { return std::to_string(value); }
std::string element_text(bool value) { return value ? "true" : "false"; }
std::string element_text(const std::string& value) { return "'" + value + "'"; }
std::string element_text(double value) {
  std::array<char, 32> digits;  // an attribute has single precision
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), static_cast<float>(value)).ptr};
}

bool is_product(const Expr& expr) {
  return expr.kind == Expr::Kind::mul || expr.kind == Expr::Kind::div || expr.kind == Expr::Kind::mod;
}

}  // namespace

std::string text_of(const Signature& signature, const Expr& expr) {
  const auto operand = [&](int i) { return text_of(signature, expr.operands[i]); };
  const auto infix = [&](const char* symbol) {
    const bool grouped = is_product(expr) && is_product(expr.operands[1]);
    return operand(0) + symbol + (grouped ? "(" + operand(1) + ")" : operand(1));
  };
  const auto function = [&](const char* name) {
    return std::string(name) + "(" + operand(0) + ", " + operand(1) + ")";
  };
  switch (expr.kind) {
    case Expr::Kind::literal: return std::to_string(expr.value);
    case Expr::Kind::name: return signature.slots[expr.slot].name;
    case Expr::Kind::add: return "(" + infix(" + ") + ")";
    case Expr::Kind::sub: return "(" + infix(" - ") + ")";
    case Expr::Kind::mul: return infix("*");
    case Expr::Kind::div: return infix("/");
    case Expr::Kind::mod: return infix("%");
    case Expr::Kind::min: return function("min");
    case Expr::Kind::max: return function("max");
    case Expr::Kind::ceildiv: return function("ceildiv");
  }
  return "";
}

std::string text_of(const Signature& signature, const Input& input) {
  std::string text = input.type.variable >= 0 ? signature.type_variables[input.type.variable].name
                                              : std::string(name_of(input.type.dtype));
  text += "[";
  for (std::size_t i = 0; i < input.dims.size(); ++i) {
    const InputDim& dim = input.dims[i];
    if (i) text += ", ";
    if (dim.kind == InputDim::Kind::ellipsis)
      text += "...";
    else if (dim.kind == InputDim::Kind::any)
      text += "*";
    else if (dim.kind == InputDim::Kind::name)
      text += signature.slots[dim.slot].name;
    else
      text += text_of(signature, dim.expr);
  }
  return text + "]";
}

std::string text_of(const AttributeValue& value) {
  return std::visit(
      [](const auto& held) -> std::string {
        using Held = std::remove_cvref_t<decltype(held)>;
        if constexpr (std::is_arithmetic_v<Held> || std::is_same_v<Held, std::string>) {
          return element_text(held);
        } else {
          std::string text = "[";
          for (const auto& element : held)
            text += (text.size() > 1 ? ", " : "") + element_text(static_cast<typename Held::value_type>(element));
          return text + "]";
        }
      },
      value);
}

std::string negative_size(const std::string& name, std::int64_t size) {
  return "'" + name + "' is a size: expected a number from 0, got " + std::to_string(size);
}

std::string type_text(const Attribute& attribute) {
  std::string text;
  switch (attribute.kind) {
    case Attribute::Kind::integer: text = "int"; break;
    case Attribute::Kind::number: text = "float"; break;
    case Attribute::Kind::boolean: text = "bool"; break;
    case Attribute::Kind::text: text = "str"; break;
    case Attribute::Kind::choice:
      for (const std::string& choice : attribute.choices) text += (text.empty() ? "{" : "|") + choice;
      text += "}";
  }
  if (attribute.list) text += "[" + (attribute.length >= 0 ? std::to_string(attribute.length) : "") + "]";
  return text;
}

}  // namespace opgate

#include "schema.h"

#include <array>
#include <cctype>
#include <charconv>

namespace opgate::libtorch {

bool none_for_default(const Attribute& attribute) {
  return attribute.list && !attribute.required &&
         (attribute.kind == Attribute::Kind::boolean || attribute.kind == Attribute::Kind::text);
}

std::string snake_case(std::string_view name) {
  const auto upper = [](char c) { return c >= 'A' && c <= 'Z'; };
  std::string snake;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool after_lower = i > 0 && !upper(name[i - 1]) && name[i - 1] != '_';
    const bool starts_word =
        i > 0 && upper(name[i - 1]) && i + 1 < name.size() && name[i + 1] >= 'a' && name[i + 1] <= 'z';
    if (upper(name[i]) && (after_lower || starts_word)) snake += '_';
    snake += upper(name[i]) ? static_cast<char>(name[i] - 'A' + 'a') : name[i];
  }
  return snake;
}

std::string torch_namespace() {
  std::string name = Table::domain();
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

namespace {

std::string literal(std::int64_t value) { return std::to_string(value); }
std::string literal(bool value) { return value ? "True" : "False"; }

std::string literal(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), static_cast<float>(value)).ptr;
  std::string number(text.data(), end);
  if (number.find_first_not_of("-0123456789") == std::string::npos) number += ".0";
  return number;
}

std::string literal(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    if (c == '\n')
      text += "\\n";
    else
      text += c;
  }
  return text + '"';
}

template <typename T>
std::string literal(const std::vector<T>& values) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) text += (i ? ", " : "") + literal(T(values[i]));
  return text + "]";
}

/// "SymInt size=16"
std::string declared(const Attribute& attribute) {
  constexpr std::array<const char*, 5> kinds = {"int", "float", "bool", "str", "str"};
  std::string text = kinds[static_cast<int>(attribute.kind)];
  // While torch traces, a size may be a symbol.
  if (attribute.kind == Attribute::Kind::integer && !attribute.list) text = "SymInt";
  if (none_for_default(attribute)) return text + "[]? " + attribute.name + "=None";
  text += (attribute.list ? "[] " : " ") + attribute.name;
  if (attribute.required) return text;
  return text + "=" + std::visit([](const auto& value) { return literal(value); }, attribute.default_value);
}

}  // namespace

bool is_returned(const Output& output, Returns returns) {
  return returns == Returns::all || !(returns == Returns::required ? output.optional : output.on_request);
}

bool has_function(const Signature& signature, Returns returns) {
  return returns == Returns::usual || std::ranges::any_of(signature.outputs, [&](const Output& output) {
           return is_returned(output, returns) != is_returned(output, Returns::usual);
         });
}

std::string function_name(const Signature& signature, Returns returns) {
  const char* const suffix = returns == Returns::required ? "_required" : returns == Returns::all ? "_all" : "";
  return snake_case(signature.name) + suffix;
}

std::string schema_of(const Signature& signature, Returns returns) {
  std::string text = function_name(signature, returns) + "(";
  for (const Input& input : signature.inputs) {
    if (text.back() != '(') text += ", ";
    text += input.variadic ? "Tensor[] " : input.optional ? "Tensor? " : "Tensor ";
    text += input.name + (input.optional ? "=None" : "");
  }
  if (!signature.attributes.empty()) text += signature.inputs.empty() ? "*" : ", *";
  for (const Attribute& attribute : signature.attributes) text += ", " + declared(attribute);
  text += ") -> ";
  const auto returned =
      std::ranges::count_if(signature.outputs, [&](const Output& output) { return is_returned(output, returns); });
  if (returned == 1) return text + "Tensor";
  text += "(";
  for (std::ptrdiff_t i = 0; i < returned; ++i) text += i ? ", Tensor" : "Tensor";
  return text + ")";
}

bool has_strings(const Signature& signature) {
  const auto is_text = [](const auto& tensor) { return tensor.type.variable < 0 && tensor.type.dtype == DType::str; };
  return std::ranges::any_of(signature.inputs, is_text) || std::ranges::any_of(signature.outputs, is_text);
}

}  // namespace opgate::libtorch

#include "table_json.h"

#include "cpu_level.h"

#include <charconv>

#include "signature/lexer.h"
#include "signature/parser.h"

namespace opgate {
namespace {

std::string json(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          constexpr const char* digits = "0123456789abcdef";
          out += std::string("\\u00") + digits[(c >> 4) & 15] + digits[c & 15];
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

std::string json(std::string_view text) { return json(std::string(text)); }
std::string json(std::int64_t value) { return std::to_string(value); }
std::string json(bool value) { return value ? "true" : "false"; }
std::string json(double value) {
  std::array<char, 32> digits;  // the shortest text of the value in single precision
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), static_cast<float>(value)).ptr};
}

template <typename Range, typename Writer>
std::string list(const Range& range, Writer&& write) {
  std::string out = "[";
  for (const auto& element : range) out += (out.size() > 1 ? ", " : "") + write(element);
  return out + "]";
}

/// A number, a name, or [operator, left, right].
std::string json(const Signature& signature, const Expr& expr) {
  static constexpr std::array<const char*, 10> kOperators = {"", "", "+", "-", "*", "/", "%", "min", "max", "ceildiv"};
  if (expr.kind == Expr::Kind::literal) return json(expr.value);
  if (expr.kind == Expr::Kind::name) return json(signature.slots[expr.slot].name);
  return "[" + json(std::string(kOperators[static_cast<int>(expr.kind)])) + ", " + json(signature, expr.operands[0]) +
         ", " + json(signature, expr.operands[1]) + "]";
}

std::string json(const Signature& signature, const InputDim& dim) {
  if (dim.kind == InputDim::Kind::ellipsis) return R"({"kind": "ellipsis"})";
  if (dim.kind == InputDim::Kind::any) return R"({"kind": "any"})";
  if (dim.kind == InputDim::Kind::expr) return R"({"kind": "expr", "expr": )" + json(signature, dim.expr) + "}";
  std::string out = R"({"kind": "name", "name": )" + json(signature.slots[dim.slot].name);
  if (dim.default_value) out += R"(, "default": )" + json(signature, *dim.default_value);
  return out + "}";
}

std::string json(const Signature& signature, const OutputDim& dim) {
  if (dim.kind == OutputDim::Kind::ellipsis) return R"({"kind": "ellipsis"})";
  if (dim.kind == OutputDim::Kind::expr) return R"({"kind": "expr", "expr": )" + json(signature, dim.expr) + "}";
  return R"({"kind": "bounded", "name": )" + json(signature.slots[dim.slot].name) + R"(, "bound": )" +
         json(signature, dim.expr) + "}";
}

std::string json(const Signature& signature, const ElementType& type) {
  return type.variable < 0 ? json(name_of(type.dtype)) : json(signature.type_variables[type.variable].name);
}

std::string json(const Signature& signature, const Input& input) {
  return R"({"name": )" + json(input.name) + R"(, "optional": )" + json(input.optional) + R"(, "variadic": )" +
         json(input.variadic) + R"(, "const": )" + json(input.host) + R"(, "type": )" + json(signature, input.type) +
         R"(, "dims": )" + list(input.dims, [&](const InputDim& dim) { return json(signature, dim); }) + "}";
}

std::string json(const Signature& signature, const Output& output) {
  return R"({"name": )" + json(output.name) + R"(, "optional": )" + json(output.optional) + R"(, "on_request": )" +
         json(output.on_request) + R"(, "type": )" + json(signature, output.type) + R"(, "dims": )" +
         list(output.dims, [&](const OutputDim& dim) { return json(signature, dim); }) + "}";
}

std::string json(const AttributeValue& value) {
  return std::visit(
      [](const auto& held) -> std::string {
        using Held = std::remove_cvref_t<decltype(held)>;
        if constexpr (std::is_arithmetic_v<Held> || std::is_same_v<Held, std::string>)
          return json(held);
        else
          return list(held, [](const auto& element) { return json(static_cast<typename Held::value_type>(element)); });
      },
      value);
}

std::string json(const Attribute& attribute) {
  static constexpr std::array<const char*, 5> kKinds = {"int", "float", "bool", "str", "choice"};
  std::string out = R"({"name": )" + json(attribute.name) + R"(, "kind": ")" +
                    kKinds[static_cast<int>(attribute.kind)] + R"(", "list": )" + json(attribute.list) +
                    R"(, "required": )" + json(attribute.required);
  if (attribute.length >= 0) out += R"(, "length": )" + json(attribute.length);
  if (!attribute.choices.empty())
    out += R"(, "choices": )" + list(attribute.choices, [](const std::string& c) { return json(c); });
  if (!attribute.required) out += R"(, "default": )" + json(attribute.default_value);
  return out + "}";
}

/// The members of a signature's object, without its braces.
std::string members(const Signature& signature) {
  const auto variable = [](const TypeVariable& v) {
    return R"({"name": )" + json(v.name) + R"(, "dtypes": )" +
           list(v.dtypes, [](DType d) { return json(name_of(d)); }) + "}";
  };
  return R"("name": )" + json(signature.name) + R"(, "signature": )" + json(signature.text) +
         R"(, "type_variables": )" + list(signature.type_variables, variable) + R"(, "inputs": )" +
         list(signature.inputs, [&](const Input& input) { return json(signature, input); }) + R"(, "attributes": )" +
         list(signature.attributes, [](const Attribute& attribute) { return json(attribute); }) + R"(, "outputs": )" +
         list(signature.outputs, [&](const Output& output) { return json(signature, output); });
}

}  // namespace

std::string table_json(const Table& table) {
  const auto op_object = [&](const Op& op) {
    std::vector<Device> devices, preparing;
    for (Device device : {Device::cpu, Device::cuda}) {
      if (op.has_kernel(device)) devices.push_back(device);
      if (op.kernel(device).prepare) preparing.push_back(device);
    }
    const auto name = [](Device device) { return json(name_of(device)); };
    return "{" + members(op.signature) + R"(, "doc": )" + json(op.doc) + R"(, "since_version": )" +
           json(static_cast<std::int64_t>(op.since_version)) + R"(, "devices": )" + list(devices, name) +
           R"(, "prepares": )" + list(preparing, name) + R"(, "gradient": )" + json(table.gradient(op.signature.name)) +
           "}";
  };
  return R"({"domain": )" + json(std::string(Table::domain())) + R"(, "errors": )" +
         list(table.errors(), [](const std::string& error) { return json(error); }) + R"(, "cpu_level": )" +
         json(std::string(cpu_level())) + R"(, "ops": )" + list(table.ops(), op_object) + "}";
}

std::string json_text(std::string_view text) { return json(text); }

std::string signature_json(std::string_view text) {
  try {
    return "{" + members(parse_signature(text)) + "}";
  } catch (const SignatureError& error) {
    return R"({"error": )" + json(std::string(error.what())) + R"(, "column": )" +
           json(static_cast<std::int64_t>(error.column)) + "}";
  }
}

}  // namespace opgate

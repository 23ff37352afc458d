#include "attributes.h"

#include <variant>

namespace opgate::ort {
namespace {

Status read_text(const OrtKernelInfo* info, const char* name, std::string& text) {
  std::size_t size = 0;  // includes the terminating zero
  OPGATE_RETURN_IF_ERROR(from_ort(api->KernelInfoGetAttribute_string(info, name, nullptr, &size)));
  text.resize(size);
  OPGATE_RETURN_IF_ERROR(from_ort(api->KernelInfoGetAttribute_string(info, name, text.data(), &size)));
  text.resize(size ? size - 1 : 0);
  return {};
}

/// The elements of a list. Empty if the attribute is no list of T.
template <typename T, typename Read>
std::vector<T> read_list(Read&& read) {
  std::size_t count = 0;
  if (!from_ort(read(nullptr, &count)).ok()) return {};
  std::vector<T> values(count);
  if (count && !from_ort(read(values.data(), &count)).ok()) return {};
  return values;
}

std::vector<std::int64_t> read_integers(const OrtKernelInfo* info, const char* name) {
  return read_list<std::int64_t>([&](std::int64_t* out, std::size_t* count) {
    return api->KernelInfoGetAttributeArray_int64(info, name, out, count);
  });
}

std::vector<float> read_numbers(const OrtKernelInfo* info, const char* name) {
  return read_list<float>(
      [&](float* out, std::size_t* count) { return api->KernelInfoGetAttributeArray_float(info, name, out, count); });
}

struct EmptyList {};

/// The attribute as the node has it. monostate if the node doesn't have it. The C API doesn't tell the type of an
/// attribute: it fails where a single value has another type, and reads a list of another type as an empty list.
using Stored = std::variant<std::monostate, std::int64_t, float, std::string, std::vector<std::int64_t>,
                            std::vector<float>, EmptyList>;

Stored read_stored(const OrtKernelInfo* info, const char* name) {
  std::int64_t integer = 0;
  float number = 0;
  std::string text;
  std::size_t count = 0;
  const auto works = [](OrtStatus* status) { return from_ort(status).ok(); };
  if (works(api->KernelInfoGetAttribute_int64(info, name, &integer))) return integer;
  if (works(api->KernelInfoGetAttribute_float(info, name, &number))) return number;
  if (read_text(info, name, text).ok()) return text;
  if (auto integers = read_integers(info, name); !integers.empty()) return integers;
  if (auto numbers = read_numbers(info, name); !numbers.empty()) return numbers;
  // A list of strings is read as an empty list too.
  if (works(api->KernelInfoGetAttributeArray_int64(info, name, nullptr, &count))) return EmptyList();
  return std::monostate();
}

std::string text_of(const Stored& stored) {
  constexpr std::array kTexts = {
      "nothing", "an integer", "a float", "a string", "integers", "floats", "a list that is empty or of strings"};
  return kTexts[stored.index()];
}

/// The value of an attribute. nullopt if the node has another type.
std::optional<AttributeValue> value_of(const Attribute& attribute, const Stored& stored) {
  const auto as = [&]<typename Held, typename Element>(const Held*, const Element*) -> std::optional<AttributeValue> {
    const auto* values = std::get_if<std::vector<Held>>(&stored);
    const auto* value = std::get_if<Held>(&stored);
    if (attribute.list && values) return std::vector<Element>(values->begin(), values->end());
    if (attribute.list && std::holds_alternative<EmptyList>(stored)) return std::vector<Element>();
    if (!attribute.list && value) return static_cast<Element>(*value);
    return std::nullopt;
  };
  constexpr const std::int64_t* kInteger = nullptr;
  switch (attribute.kind) {
    case Attribute::Kind::integer: return as(kInteger, kInteger);
    case Attribute::Kind::boolean: return as(kInteger, static_cast<const bool*>(nullptr));
    case Attribute::Kind::number: return as(static_cast<const float*>(nullptr), static_cast<const double*>(nullptr));
    case Attribute::Kind::text:
    case Attribute::Kind::choice: break;
  }
  const auto* text = std::get_if<std::string>(&stored);
  if (!text) return std::nullopt;
  if (attribute.list) return lines(*text);  // the C API can't read a list of strings
  return *text;
}

/// What a node must write, where that isn't obvious.
std::string hint_of(const Attribute& attribute) {
  if (attribute.list && attribute.kind == Attribute::Kind::text) return " as one string, an element a line";
  return attribute.kind == Attribute::Kind::number ? " (1.0, not 1)" : "";
}

}  // namespace

Status read_attributes(const OrtKernelInfo* info, const Signature& signature, Attributes& attributes) {
  std::vector<std::optional<AttributeValue>> values(signature.attributes.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Attribute& attribute = signature.attributes[i];
    const Stored stored = read_stored(info, attribute.name.c_str());
    if (std::holds_alternative<std::monostate>(stored)) continue;
    values[i] = value_of(attribute, stored);
    if (!values[i]) {
      return Status::invalid("attribute '" + attribute.name + "': expected " + type_text(attribute) +
                             hint_of(attribute) + ", got " + text_of(stored));
    }
  }
  return Attributes::make(signature, std::move(values), attributes);
}

}  // namespace opgate::ort

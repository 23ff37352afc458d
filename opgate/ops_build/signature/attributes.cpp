#include "attributes.h"

#include <algorithm>

namespace opgate {
namespace {

template <typename T>
bool holds(const AttributeValue& value, bool list) {
  return list ? std::holds_alternative<std::vector<T>>(value) : std::holds_alternative<T>(value);
}

bool has_type_of(const Attribute& attribute, const AttributeValue& value) {
  switch (attribute.kind) {
    case Attribute::Kind::integer: return holds<std::int64_t>(value, attribute.list);
    case Attribute::Kind::number: return holds<double>(value, attribute.list);
    case Attribute::Kind::boolean: return holds<bool>(value, attribute.list);
    case Attribute::Kind::text: return holds<std::string>(value, attribute.list);
    case Attribute::Kind::choice: return std::holds_alternative<std::string>(value);
  }
  return false;
}

std::int64_t length_of(const AttributeValue& value) {
  return std::visit(
      [](const auto& held) -> std::int64_t {
        using Held = std::remove_cvref_t<decltype(held)>;
        if constexpr (std::is_arithmetic_v<Held> || std::is_same_v<Held, std::string>)
          return 1;
        else
          return static_cast<std::int64_t>(held.size());
      },
      value);
}

/// A value as messages show it: a long one is cut, between two characters of UTF-8.
std::string shown(std::string text) {
  constexpr std::size_t kMost = 200;
  if (text.size() <= kMost) return text;
  std::size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;
  return text.substr(0, end) + "...";
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) c == '\n' ? result += "\\n" : result += c;
  return result;
}

Status check(const Attribute& attribute, const AttributeValue& value) {
  const std::string what = "attribute '" + attribute.name + "': expected " + type_text(attribute) + ", got ";
  if (!has_type_of(attribute, value)) return Status::invalid(what + "a value of another type");
  if (attribute.list && attribute.length >= 0 && length_of(value) != attribute.length) {
    return Status::invalid(what + std::to_string(length_of(value)) + " values");
  }
  if (attribute.kind == Attribute::Kind::choice) {
    const std::string& chosen = std::get<std::string>(value);
    if (!std::ranges::count(attribute.choices, chosen)) return Status::invalid(what + "'" + shown(chosen) + "'");
  }
  if (attribute.kind == Attribute::Kind::text && attribute.list) {
    // An ONNX node stores the list as one string with an element per line.
    for (const std::string& element : std::get<std::vector<std::string>>(value)) {
      if (element.find('\n') == std::string::npos) continue;
      return Status::invalid("attribute '" + attribute.name + "': expected elements without line feeds, got '" +
                             shown(escaped(element)) + "'");
    }
  }
  return {};
}

}  // namespace

Status Attributes::make(const Signature& signature, std::vector<std::optional<AttributeValue>> values,
                        Attributes& out) {
  out.signature_ = &signature;
  out.values_.clear();
  for (std::size_t i = 0; i < signature.attributes.size(); ++i) {
    const Attribute& attribute = signature.attributes[i];
    if (!values[i]) {
      if (attribute.required) {
        return Status::invalid("attribute '" + attribute.name + "' is required: " + type_text(attribute));
      }
      out.values_.push_back(attribute.default_value);
      continue;
    }
    OPGATE_RETURN_IF_ERROR(check(attribute, *values[i]));
    out.values_.push_back(std::move(*values[i]));
  }
  for (const Slot& slot : signature.slots) {
    if (slot.kind != Slot::Kind::attribute) continue;
    const auto size = std::get<std::int64_t>(out.values_[static_cast<std::size_t>(slot.index)]);
    if (size < 0) return Status::invalid(negative_size(slot.name, size));
  }
  return {};
}

Status Attributes::refuse(std::string_view name, const std::string& expected) const {
  std::size_t i = 0;
  while (i < values_.size() && signature_->attributes[i].name != name) ++i;
  return Status::invalid("attribute '" + std::string(name) + "': expected " + expected + ", got " +
                         (i < values_.size() ? shown(text_of(values_[i])) : "none"));
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> all;
  if (text.empty()) return all;
  std::size_t start = 0;
  for (std::size_t end; (end = text.find('\n', start)) != std::string::npos; start = end + 1) {
    all.push_back(text.substr(start, end - start));
  }
  all.push_back(text.substr(start));
  return all;
}

}  // namespace opgate

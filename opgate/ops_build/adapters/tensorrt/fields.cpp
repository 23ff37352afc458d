#include "fields.h"

#include <array>
#include <cstring>

namespace opgate::tensorrt {

using nvinfer1::DataType;
using nvinfer1::PluginField;
using nvinfer1::PluginFieldCollection;
using nvinfer1::PluginFieldType;

std::optional<DataType> to_trt(DType dtype) {
  switch (dtype) {
    case DType::f16: return DataType::kHALF;
    case DType::bf16: return DataType::kBF16;
    case DType::f32: return DataType::kFLOAT;
    case DType::i8: return DataType::kINT8;
    case DType::i32: return DataType::kINT32;
    case DType::i64: return DataType::kINT64;
    default: return std::nullopt;
  }
}

std::optional<DType> from_trt(DataType type) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (to_trt(static_cast<DType>(i)) == type) return static_cast<DType>(i);
  }
  return std::nullopt;
}

PluginFieldType field_type(const Attribute& attribute) {
  switch (attribute.kind) {
    case Attribute::Kind::integer: return PluginFieldType::kINT64;
    case Attribute::Kind::boolean: return PluginFieldType::kINT32;
    case Attribute::Kind::number: return PluginFieldType::kFLOAT32;
    default: return PluginFieldType::kCHAR;
  }
}

namespace {

template <typename To>
std::optional<std::vector<To>> numbers_of(const PluginField& field) {
  const auto read = [&]<typename From>(const From*) {
    const From* data = static_cast<const From*>(field.data);
    return std::vector<To>(data, data + field.length);
  };
  if constexpr (std::is_floating_point_v<To>) {
    if (field.type == PluginFieldType::kFLOAT32) return read(static_cast<const float*>(nullptr));
    if (field.type == PluginFieldType::kFLOAT64) return read(static_cast<const double*>(nullptr));
  } else {
    if (field.type == PluginFieldType::kINT8) return read(static_cast<const std::int8_t*>(nullptr));
    if (field.type == PluginFieldType::kINT32) return read(static_cast<const std::int32_t*>(nullptr));
    if (field.type == PluginFieldType::kINT64) return read(static_cast<const std::int64_t*>(nullptr));
  }
  return std::nullopt;
}

/// "3 values of int64"
std::string text_of(const PluginField& field) {
  constexpr std::array kTypes = {"f16", "f32", "f64", "int8", "int16", "int32", "char"};
  const auto type = static_cast<std::size_t>(field.type);
  const std::string name = field.type == PluginFieldType::kINT64 ? "int64"
                           : type < kTypes.size()                ? kTypes[type]
                                                                 : "field type " + std::to_string(type);
  return std::to_string(field.length) + (field.length == 1 ? " value of " : " values of ") + name;
}

/// The value of an attribute from the numbers of a field: the list, or its only element.
template <typename Element, typename From>
std::optional<AttributeValue> value_of(const std::optional<std::vector<From>>& numbers, bool list) {
  if (!numbers || (!list && numbers->size() != 1)) return std::nullopt;
  if (!list) return static_cast<Element>((*numbers)[0]);
  return std::vector<Element>(numbers->begin(), numbers->end());
}

std::optional<AttributeValue> read_field(const PluginField& field, const Attribute& attribute) {
  switch (attribute.kind) {
    case Attribute::Kind::integer: return value_of<std::int64_t>(numbers_of<std::int64_t>(field), attribute.list);
    case Attribute::Kind::boolean: return value_of<bool>(numbers_of<std::int64_t>(field), attribute.list);
    case Attribute::Kind::number: return value_of<double>(numbers_of<double>(field), attribute.list);
    default: break;
  }
  if (field.type != PluginFieldType::kCHAR) return std::nullopt;
  std::string text(static_cast<const char*>(field.data), static_cast<std::size_t>(field.length));
  while (!text.empty() && text.back() == '\0') text.pop_back();  // some fields have the terminating zero
  if (attribute.list) return lines(text);
  return text;
}

}  // namespace

Status read_attributes(const Signature& signature, const PluginFieldCollection& fields, Attributes& attributes) {
  std::vector<std::optional<AttributeValue>> values(signature.attributes.size());
  for (int f = 0; f < fields.nbFields; ++f) {
    const PluginField& field = fields.fields[f];
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Attribute& attribute = signature.attributes[i];
      if (attribute.name != field.name || (!field.data && field.length)) continue;
      values[i] = read_field(field, attribute);
      if (!values[i]) {
        const bool real = attribute.kind == Attribute::Kind::number;
        return Status::invalid("attribute '" + attribute.name + "': expected " + type_text(attribute) +
                               (real ? " (1.0, not 1)" : "") + ", got " + text_of(field));
      }
    }
  }
  return Attributes::make(signature, std::move(values), attributes);
}

Status read_present_inputs(const Signature& signature, const PluginFieldCollection& fields, PresentInputs& present) {
  for (int f = 0; f < fields.nbFields; ++f) {
    if (std::strcmp(fields.fields[f].name, kPresentInputs) != 0) continue;
    const auto numbers = numbers_of<std::int64_t>(fields.fields[f]);
    if (!numbers) return Status::invalid(std::string(kPresentInputs) + ": expected integers");
    for (const std::int64_t index : *numbers) {
      if (index < 0 || index >= static_cast<std::int64_t>(signature.inputs.size()) ||
          (!present.empty() && index <= present.back())) {
        return Status::invalid(std::string(kPresentInputs) + ": expected ascending indices of inputs, got " +
                               std::to_string(index));
      }
      present.push_back(index);
    }
  }
  return {};
}

Fields::Fields(const Signature& signature, const Attributes& attributes, const PresentInputs& present) {
  for (std::size_t i = 0; i < signature.attributes.size(); ++i) {
    const Attribute& attribute = signature.attributes[i];
    add(attribute.name.c_str(), field_type(attribute), attributes.at(i));
  }
  if (!present.empty()) add(kPresentInputs, PluginFieldType::kINT64, present);
  collection_ = {static_cast<int>(fields_.size()), fields_.data()};
}

std::string Fields::text() const {
  constexpr const char* digits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    text += (i ? " " : "") + std::string(fields_[i].name) + "=";
    for (const char c : data_[i]) text += {digits[(c >> 4) & 15], digits[c & 15]};
  }
  return text;
}

void Fields::add(const char* name, PluginFieldType type, const AttributeValue& value) {
  std::string& bytes = data_.emplace_back();
  std::size_t count = 0;
  const auto append = [&](auto element) {
    bytes.append(reinterpret_cast<const char*>(&element), sizeof element);
    ++count;
  };
  const auto append_each = [&](const auto& elements, auto as) {
    for (const auto element : elements) append(static_cast<decltype(as)>(element));
  };
  std::visit(
      [&](const auto& held) {
        using Held = std::remove_cvref_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::int64_t>)
          append(held);
        else if constexpr (std::is_same_v<Held, bool>)
          append(static_cast<std::int32_t>(held));
        else if constexpr (std::is_same_v<Held, double>)
          append(static_cast<float>(held));
        else if constexpr (std::is_same_v<Held, std::vector<std::int64_t>>)
          append_each(held, std::int64_t{});
        else if constexpr (std::is_same_v<Held, std::vector<bool>>)
          append_each(held, std::int32_t{});
        else if constexpr (std::is_same_v<Held, std::vector<double>>)
          append_each(held, float{});
        else if constexpr (std::is_same_v<Held, std::string>)
          bytes = held;
        else
          for (std::size_t i = 0; i < held.size(); ++i) bytes += (i ? "\n" : "") + held[i];
      },
      value);
  fields_.emplace_back(name, bytes.data(), type,
                       static_cast<int>(type == PluginFieldType::kCHAR ? bytes.size() : count));
}

}  // namespace opgate::tensorrt

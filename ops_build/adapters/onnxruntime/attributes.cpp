#include "attributes.h"

namespace opgate::ort {
namespace {

template <typename T, typename Read>
Status read_list(Read&& read, std::vector<T>& values) {
  std::size_t count = 0;
  OPGATE_RETURN_IF_ERROR(from_ort(read(nullptr, &count)));
  values.resize(count);
  return count ? from_ort(read(values.data(), &count)) : Status();
}

Status read_text(const OrtKernelInfo* info, const char* name, std::string& text) {
  std::size_t size = 0;  // includes the terminating zero
  OPGATE_RETURN_IF_ERROR(from_ort(api->KernelInfoGetAttribute_string(info, name, nullptr, &size)));
  text.resize(size);
  OPGATE_RETURN_IF_ERROR(from_ort(api->KernelInfoGetAttribute_string(info, name, text.data(), &size)));
  text.resize(size ? size - 1 : 0);
  return {};
}

Status read_attribute(const OrtKernelInfo* info, const Attribute& attribute, AttributeValue& value) {
  const char* name = attribute.name.c_str();
  const bool real = attribute.kind == Attribute::Kind::number;
  if (attribute.kind == Attribute::Kind::text || attribute.kind == Attribute::Kind::choice) {
    std::string text;
    OPGATE_RETURN_IF_ERROR(read_text(info, name, text));
    if (attribute.list)
      value = lines(text);  // the C API can't read a list of strings
    else
      value = std::move(text);
  } else if (attribute.list && real) {
    std::vector<float> values;
    OPGATE_RETURN_IF_ERROR(read_list(
        [&](float* out, std::size_t* count) { return api->KernelInfoGetAttributeArray_float(info, name, out, count); },
        values));
    // The C API reads a list of integers as an empty list of floats.
    std::size_t integers = 0;
    if (values.empty() && from_ort(api->KernelInfoGetAttributeArray_int64(info, name, nullptr, &integers)).ok() &&
        integers)
      return Status::invalid("the elements are integers");
    value = std::vector<double>(values.begin(), values.end());
  } else if (attribute.list) {
    std::vector<std::int64_t> values;
    OPGATE_RETURN_IF_ERROR(
        read_list([&](std::int64_t* out,
                      std::size_t* count) { return api->KernelInfoGetAttributeArray_int64(info, name, out, count); },
                  values));
    if (attribute.kind == Attribute::Kind::boolean)
      value = std::vector<bool>(values.begin(), values.end());
    else
      value = std::move(values);
  } else if (real) {
    float number = 0;
    OPGATE_RETURN_IF_ERROR(from_ort(api->KernelInfoGetAttribute_float(info, name, &number)));
    value = static_cast<double>(number);
  } else {
    std::int64_t integer = 0;
    OPGATE_RETURN_IF_ERROR(from_ort(api->KernelInfoGetAttribute_int64(info, name, &integer)));
    if (attribute.kind == Attribute::Kind::boolean)
      value = integer != 0;
    else
      value = integer;
  }
  return {};
}

/// Whether the node has the attribute. The C API only says that it can't read the attribute as the requested type.
bool carries(const OrtKernelInfo* info, const char* name) {
  float real = 0;
  std::int64_t integer = 0;
  std::size_t size = 0;
  const auto works = [](OrtStatus* status) { return from_ort(status).ok(); };
  return works(api->KernelInfoGetAttribute_int64(info, name, &integer)) ||
         works(api->KernelInfoGetAttribute_float(info, name, &real)) ||
         works(api->KernelInfoGetAttribute_string(info, name, nullptr, &size)) ||
         works(api->KernelInfoGetAttributeArray_int64(info, name, nullptr, &size)) ||
         works(api->KernelInfoGetAttributeArray_float(info, name, nullptr, &size));
}

}  // namespace

Status read_attributes(const OrtKernelInfo* info, const Signature& signature, Attributes& attributes) {
  std::vector<std::optional<AttributeValue>> values(signature.attributes.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Attribute& attribute = signature.attributes[i];
    AttributeValue value;
    if (read_attribute(info, attribute, value).ok()) {
      values[i] = std::move(value);
    } else if (carries(info, attribute.name.c_str())) {
      std::string hint;
      if (attribute.list && attribute.kind == Attribute::Kind::text) hint = " as one string, an element a line";
      if (attribute.kind == Attribute::Kind::number) hint = " (1.0, not 1)";
      return Status::invalid("attribute '" + attribute.name + "': expected " + type_text(attribute) + hint +
                             ", got a value of another type");
    }
  }
  return Attributes::make(signature, std::move(values), attributes);
}

}  // namespace opgate::ort

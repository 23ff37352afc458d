#include "arguments.h"

#include <cstring>

#include "schema.h"

namespace opgate::libtorch {
namespace {

template <typename T>
T value_of(StableIValue boxed) {
  T value;
  std::memcpy(&value, &boxed, sizeof value);
  return value;
}

std::vector<StableIValue> take_list(StableIValue boxed) {
  const auto list = value_of<StableListHandle>(boxed);
  std::size_t size = 0;
  expect(torch.torch_list_size(list, &size), "reading a list");
  std::vector<StableIValue> values(size);
  for (std::size_t i = 0; i < size; ++i) expect(torch.torch_list_get_item(list, i, &values[i]), "reading a list");
  expect(torch.torch_delete_list(list), "deleting a list");
  return values;
}

std::string take_text(StableIValue boxed) {
  const auto handle = value_of<StringHandle>(boxed);
  std::size_t length = 0;
  const char* characters = nullptr;
  expect(torch.torch_string_length(handle, &length), "reading a string");
  expect(torch.torch_string_c_str(handle, &characters), "reading a string");
  std::string text(characters, length);
  expect(torch.torch_delete_string(handle), "deleting a string");
  return text;
}

template <typename T, typename Take>
std::vector<T> take_all(StableIValue boxed, Take&& take) {
  std::vector<T> values;
  for (const StableIValue item : take_list(boxed)) values.push_back(take(item));
  return values;
}

/// A float attribute has single precision in every engine.
double single(StableIValue boxed) { return static_cast<float>(value_of<double>(boxed)); }

AttributeValue take_attribute(const Attribute& attribute, StableIValue boxed) {
  switch (attribute.kind) {
    case Attribute::Kind::integer:
      if (attribute.list) return take_all<std::int64_t>(boxed, value_of<std::int64_t>);
      return value_of<std::int64_t>(boxed);
    case Attribute::Kind::number:
      if (attribute.list) return take_all<double>(boxed, single);
      return single(boxed);
    case Attribute::Kind::boolean:
      if (attribute.list) return take_all<bool>(boxed, value_of<bool>);
      return value_of<bool>(boxed);
    case Attribute::Kind::text:
    case Attribute::Kind::choice: break;
  }
  if (attribute.list) return take_all<std::string>(boxed, take_text);
  return take_text(boxed);
}

}  // namespace

Arguments::Arguments(const Signature& signature, const StableIValue* stack) {
  tensors.reserve(signature.inputs.size());
  for (const Input& input : signature.inputs) {
    const StableIValue boxed = *stack++;
    if (input.variadic) {
      for (const StableIValue item : take_list(boxed)) tensors.emplace_back(value_of<AtenTensorHandle>(item));
    } else if (input.optional) {
      const std::unique_ptr<StableIValue> held(value_of<StableIValue*>(boxed));
      tensors.emplace_back(held ? value_of<AtenTensorHandle>(*held) : nullptr);
    } else {
      tensors.emplace_back(value_of<AtenTensorHandle>(boxed));
    }
  }
  for (const Attribute& attribute : signature.attributes) {
    const StableIValue boxed = *stack++;
    if (!none_for_default(attribute)) {
      attributes.emplace_back(take_attribute(attribute, boxed));
    } else if (const std::unique_ptr<StableIValue> held(value_of<StableIValue*>(boxed)); held) {
      attributes.emplace_back(take_attribute(attribute, *held));
    } else {
      attributes.emplace_back(std::nullopt);
    }
  }
}

StableIValue boxed(AtenTensorHandle tensor) {
  StableIValue result = 0;
  std::memcpy(&result, &tensor, sizeof tensor);
  return result;
}

}  // namespace opgate::libtorch

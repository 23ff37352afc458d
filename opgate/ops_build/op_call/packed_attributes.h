// Reads values from the bytes into which packed_attributes.py packs them. It says the format.
//
// A source has a function read(void* target, std::size_t count), which gives the next bytes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "signature/attributes.h"

namespace opgate::packed {

static_assert(std::endian::native == std::endian::little);

/// Bytes in memory, as a source.
class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : bytes_(bytes) {}

  void read(void* target, std::size_t count) {
    if (count > bytes_.size()) throw std::runtime_error("packed values end in the middle");
    std::memcpy(target, bytes_.data(), count);
    bytes_.remove_prefix(count);
  }

 private:
  std::string_view bytes_;
};

template <typename T, typename Source>
T read(Source& source) {
  T value{};
  source.read(&value, sizeof value);
  return value;
}

template <typename Source>
std::string read_text(Source& source) {
  std::string text(read<std::uint32_t>(source), '\0');
  source.read(text.data(), text.size());
  return text;
}

template <typename T, typename Source>
std::vector<T> read_list(Source& source) {
  std::vector<T> values(read<std::uint32_t>(source));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if constexpr (std::is_same_v<T, std::string>)
      values[i] = read_text(source);
    else if constexpr (std::is_same_v<T, bool>)
      values[i] = read<std::uint8_t>(source) != 0;
    else
      values[i] = read<T>(source);
  }
  return values;
}

template <typename Source>
AttributeValue read_attribute(Source& source) {
  switch (read<std::uint8_t>(source)) {
    case 0: return read<std::int64_t>(source);
    case 1: return read<double>(source);
    case 2: return read<std::uint8_t>(source) != 0;
    case 3: return read_text(source);
    case 4: return read_list<std::int64_t>(source);
    case 5: return read_list<double>(source);
    case 6: return read_list<bool>(source);
    case 7: return read_list<std::string>(source);
    default: throw std::runtime_error("an attribute of an unknown kind");
  }
}

using NamedAttributes = std::vector<std::pair<std::string, AttributeValue>>;

template <typename Source>
NamedAttributes read_attributes(Source& source) {
  NamedAttributes attributes;
  for (auto count = read<std::uint32_t>(source); count > 0; --count) {
    std::string name = read_text(source);
    attributes.emplace_back(std::move(name), read_attribute(source));
  }
  return attributes;
}

/// Gives the named values to an op. Fails as Attributes::make does, and where the op has no attribute of a name.
inline Status make_attributes(const Signature& signature, NamedAttributes named, Attributes& attributes) {
  std::vector<std::optional<AttributeValue>> values(signature.attributes.size());
  for (auto& [name, value] : named) {
    const auto found = std::ranges::find(signature.attributes, name, &Attribute::name);
    if (found == signature.attributes.end()) return Status::invalid("there is no attribute '" + name + "'");
    values[static_cast<std::size_t>(found - signature.attributes.begin())] = std::move(value);
  }
  return Attributes::make(signature, std::move(values), attributes);
}

}  // namespace opgate::packed

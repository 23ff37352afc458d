// The attributes of an op. A kernel reads them by name; defaults are filled in, types and lengths have been checked.
#pragma once

#include <optional>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "signature.h"
#include "signature_text.h"
#include "status.h"

namespace opgate {

class Attributes {
 public:
  /// `values` are in the signature's order. An absent one gets its default. Fails, and names the attribute, where a
  /// required one is absent, where a value has another type or length or is none of the choices, and where a size is
  /// negative.
  static Status make(const Signature& signature, std::vector<std::optional<AttributeValue>> values, Attributes& out);

  std::int64_t integer(std::string_view name) const { return get<std::int64_t>(name); }
  double number(std::string_view name) const { return get<double>(name); }
  bool boolean(std::string_view name) const { return get<bool>(name); }
  /// The text of a `str` attribute or of a choice.
  const std::string& text(std::string_view name) const { return get<std::string>(name); }
  const std::vector<std::int64_t>& integers(std::string_view name) const {
    return get<std::vector<std::int64_t>>(name);
  }
  const std::vector<double>& numbers(std::string_view name) const { return get<std::vector<double>>(name); }
  const std::vector<bool>& booleans(std::string_view name) const { return get<std::vector<bool>>(name); }
  const std::vector<std::string>& texts(std::string_view name) const { return get<std::vector<std::string>>(name); }

  /// The error of a value that the op can't use: "attribute 'pad': expected 0..255, got 300".
  Status refuse(std::string_view name, const std::string& expected) const;

  /// The attribute with this index in the signature.
  const AttributeValue& at(std::size_t index) const { return values_[index]; }

  /// Whether all values are equal. Both must belong to the same signature.
  bool operator==(const Attributes& other) const { return values_ == other.values_; }

 private:
  template <typename T>
  const T& get(std::string_view name) const {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (signature_->attributes[i].name != name) continue;
      if (const T* value = std::get_if<T>(&values_[i])) return *value;
      throw std::logic_error("the kernel reads attribute '" + std::string(name) + "' as another type than its " +
                             type_text(signature_->attributes[i]));
    }
    throw std::logic_error("the kernel asks for attribute '" + std::string(name) +
                           "', which the signature does not have");
  }

  const Signature* signature_ = nullptr;
  std::vector<AttributeValue> values_;
};

/// The elements of a `str[]` attribute. Engines that have no lists of strings store it as one string, one element per
/// line.
std::vector<std::string> lines(const std::string& text);

}  // namespace opgate

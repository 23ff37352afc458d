// A JSON document as a tree.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace opgate::text {

/// The text of a tokenizer.json can't be used. The message says where and why.
struct TokenizerError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Json {
 public:
  using Items = std::vector<Json>;
  using Members = std::vector<std::pair<std::string, Json>>;

  std::variant<std::nullptr_t, bool, double, std::string, Items, Members> value;

  /// Throws TokenizerError.
  static Json parse(std::string_view text);

  bool null() const { return std::holds_alternative<std::nullptr_t>(value); }

  /// The value of the last member with this key; nullptr if there is none, or if this is no object.
  const Json* find(std::string_view key) const;

  // These throw TokenizerError if the value is of another type. `where` names it in the message.
  bool boolean(const std::string& where) const { return as<bool>(where, "true or false"); }
  double number(const std::string& where) const { return as<double>(where, "a number"); }
  /// A whole number that is not negative.
  std::uint64_t whole(const std::string& where) const;
  /// A whole number of 32 bits, such as the id of a token.
  std::uint32_t id(const std::string& where) const;
  const std::string& text(const std::string& where) const { return as<std::string>(where, "a string"); }
  const Items& items(const std::string& where) const { return as<Items>(where, "a list"); }
  const Members& members(const std::string& where) const { return as<Members>(where, "an object"); }

  /// A member that must be there.
  const Json& at(std::string_view key, const std::string& where) const;
  /// Members that may be absent or null.
  bool boolean_or(std::string_view key, bool otherwise, const std::string& where) const;
  std::string text_or(std::string_view key, std::string_view otherwise, const std::string& where) const;

 private:
  template <typename T>
  const T& as(const std::string& where, const char* expected) const {
    if (const T* found = std::get_if<T>(&value)) return *found;
    throw TokenizerError(where + ": expected " + expected);
  }
};

}  // namespace opgate::text

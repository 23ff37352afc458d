#include "json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace opgate::text {
namespace {

/// A power of ten as the nearest double.
double power_of_ten(int exponent) {
  static const auto powers = [] {
    std::array<double, 309> values{};
    for (int i = 0; i < 309; ++i) values[static_cast<std::size_t>(i)] = std::stod("1e" + std::to_string(i));
    return values;
  }();
  return powers[static_cast<std::size_t>(exponent)];
}

/// The double that serde_json reads for a number: the digits as one integer, then one multiplication or division. It is
/// not always the nearest one, and the scores of a Unigram model must be those that `tokenizers` adds.
double number_of(std::string_view text) {
  const bool negative = text.starts_with('-');
  std::uint64_t digits = 0;
  int exponent = 0;
  bool fraction = false, full = false;
  std::size_t i = negative;
  for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
    if (text[i] == '.') {
      fraction = true;
      continue;
    }
    const auto digit = static_cast<std::uint64_t>(text[i] - '0');
    full = full || digits > (std::numeric_limits<std::uint64_t>::max() - digit) / 10;
    if (full) {
      exponent += !fraction;
    } else {
      digits = digits * 10 + digit;
      exponent -= fraction;
    }
  }
  if (i < text.size()) {
    const long written = std::strtol(std::string(text.substr(i + 1)).c_str(), nullptr, 10);
    exponent += static_cast<int>(std::clamp(written, -100000L, 100000L));
  }
  auto value = static_cast<double>(digits);
  for (; exponent < -308 && value != 0; exponent += 308) value /= 1e308;
  if (value != 0)
    value = exponent < 0 ? value / power_of_ten(-exponent) : exponent > 308 ? INFINITY : value * power_of_ten(exponent);
  return negative ? -value : value;
}

/// Builds the tree from the events of nlohmann's parser, which gives the text of each fraction.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Json root;
  std::string error;

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(static_cast<double>(value)); }
  bool number_unsigned(number_unsigned_t value) override { return put(static_cast<double>(value)); }
  bool number_float(number_float_t, const string_t& text) override { return put(number_of(text)); }
  bool string(string_t& text) override { return put(std::move(text)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::Members()); }
  bool key(string_t& text) override {
    std::get<Json::Members>(open_.back()->value).emplace_back().first = std::move(text);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Json::Items()); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& what) override {
    error = what.what();
    return false;
  }

 private:
  static constexpr std::size_t kDepth = 256;

  template <typename T>
  Json& place(T value) {
    Json* to = &root;
    if (!open_.empty()) {
      if (auto* items = std::get_if<Json::Items>(&open_.back()->value))
        to = &items->emplace_back();
      else
        to = &std::get<Json::Members>(open_.back()->value).back().second;
    }
    to->value = std::move(value);
    return *to;
  }
  template <typename T>
  bool put(T value) {
    place(std::move(value));
    return true;
  }
  template <typename T>
  bool open(T value) {
    if (open_.size() == kDepth) {
      error = "more than 256 levels";
      return false;
    }
    open_.push_back(&place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::vector<Json*> open_;  // an element of a list moves only when its list grows, and then it is closed
};

}  // namespace

Json Json::parse(std::string_view text) {
  Builder builder;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    throw TokenizerError("expected the text of a tokenizer.json: " + builder.error);
  }
  return std::move(builder.root);
}

const Json* Json::find(std::string_view key) const {
  const auto* members = std::get_if<Members>(&value);
  if (!members) return nullptr;
  for (auto i = members->rbegin(); i != members->rend(); ++i) {
    if (i->first == key) return &i->second;
  }
  return nullptr;
}

std::uint64_t Json::whole(const std::string& where) const {
  const double found = number(where);
  if (!(found >= 0) || found != std::floor(found)) throw TokenizerError(where + ": expected a whole number");
  return found >= 0x1p63 ? std::uint64_t{1} << 63 : static_cast<std::uint64_t>(found);
}

std::uint32_t Json::id(const std::string& where) const {
  const std::uint64_t found = whole(where);
  if (found > 0xffffffffu) throw TokenizerError(where + ": expected less than 2^32");
  return static_cast<std::uint32_t>(found);
}

const Json& Json::at(std::string_view key, const std::string& where) const {
  members(where);
  if (const Json* found = find(key)) return *found;
  throw TokenizerError(where + ": expected a member '" + std::string(key) + "'");
}

bool Json::boolean_or(std::string_view key, bool otherwise, const std::string& where) const {
  const Json* found = find(key);
  return !found || found->null() ? otherwise : found->boolean(where + "." + std::string(key));
}

std::string Json::text_or(std::string_view key, std::string_view otherwise, const std::string& where) const {
  const Json* found = find(key);
  return !found || found->null() ? std::string(otherwise) : found->text(where + "." + std::string(key));
}

}  // namespace opgate::text

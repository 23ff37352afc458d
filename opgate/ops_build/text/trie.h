// Strings that are found at the front of a text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "json.h"

namespace opgate::text {

/// A trie over bytes whose edges lie in one hash table.
class Trie {
 public:
  Trie() : slots_(1024), values_(1, kNone) {}

  /// Adds a string with a value, which is not negative, or gives it another value.
  void set(std::string_view string, std::int32_t value) {
    std::uint32_t node = 0;
    for (const char byte : string) {
      const std::uint32_t key = key_of(node, byte);
      Slot* slot = &slots_[place(key)];
      if (slot->key == kFree) {
        if (2 * values_.size() > slots_.size()) {
          grow();
          slot = &slots_[place(key)];
        }
        if (values_.size() == kMostNodes) throw TokenizerError("model.vocab: more than 16 million bytes");
        *slot = {key, static_cast<std::uint32_t>(values_.size())};
        values_.push_back(kNone);
      }
      node = slot->child;
    }
    values_[node] = value;
    first_[string.empty() ? 0 : static_cast<unsigned char>(string[0])] = true;
  }

  /// Whether a string may begin with this byte.
  bool begins(char byte) const { return first_[static_cast<unsigned char>(byte)]; }
  bool empty() const { return values_.size() == 1; }

  /// Calls use(length, value) for each string at the front of the text, the shortest first.
  template <typename Use>
  void for_each_prefix(std::string_view text, Use use) const {
    std::uint32_t node = 0;
    for (std::uint32_t i = 0; i < text.size(); ++i) {
      const Slot& slot = slots_[place(key_of(node, text[i]))];
      if (slot.key == kFree) return;
      node = slot.child;
      if (values_[node] != kNone) use(i + 1, values_[node]);
    }
  }

  struct Match {
    std::uint32_t length = 0;  ///< 0: there is none
    std::int32_t value = kNone;
  };

  /// The longest string at the front of the text.
  Match longest_prefix(std::string_view text) const {
    Match match;
    for_each_prefix(text, [&](std::uint32_t length, std::int32_t value) { match = {length, value}; });
    return match;
  }

 private:
  static constexpr std::int32_t kNone = -1;
  static constexpr std::uint32_t kFree = 0xffffffff;
  static constexpr std::size_t kMostNodes = (1 << 24) - 1;  // so that no key is kFree
  struct Slot {
    std::uint32_t key = kFree, child = 0;
  };

  static std::uint32_t key_of(std::uint32_t node, char byte) { return node << 8 | static_cast<unsigned char>(byte); }

  std::size_t place(std::uint32_t key) const {
    std::size_t at = (key * std::uint64_t{0x9e3779b97f4a7c15u} >> 32) & (slots_.size() - 1);
    while (slots_[at].key != key && slots_[at].key != kFree) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key != kFree) slots_[place(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
  std::vector<std::int32_t> values_;  // by node
  bool first_[256] = {};
};

}  // namespace opgate::text

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
  Trie() : slots_(1024) {}

  /// Adds a string with a value, which is not negative, or gives it another value. Nothing is found of an empty one.
  void set(std::string_view string, std::int32_t value) {
    if (string.empty()) return;
    first_[static_cast<unsigned char>(string[0])] = true;
    std::uint32_t node = 0;
    std::size_t at = 0;
    for (const char byte : string) {
      if (2 * nodes_ > slots_.size()) grow();
      at = place(key_of(node, byte));
      if (slots_[at].key == kFree) {
        if (nodes_ == kMostNodes) throw TokenizerError("model.vocab: more than 16 million bytes");
        slots_[at] = {key_of(node, byte), nodes_++, kNone};
      }
      node = slots_[at].child;
    }
    slots_[at].value = value;
  }

  /// Whether a string may begin with this byte.
  bool begins(char byte) const { return first_[static_cast<unsigned char>(byte)]; }
  bool empty() const { return nodes_ == 1; }

  /// Calls use(length, value) for each string at the front of the text, the shortest first.
  template <typename Use>
  void for_each_prefix(std::string_view text, Use use) const {
    std::uint32_t node = 0;
    for (std::uint32_t i = 0; i < text.size(); ++i) {
      const Slot& slot = slots_[place(key_of(node, text[i]))];
      if (slot.key == kFree) return;
      node = slot.child;
      if (slot.value != kNone) use(i + 1, slot.value);
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
  static constexpr std::uint32_t kMostNodes = (1 << 24) - 1;  // so that no key is kFree
  struct Slot {
    std::uint32_t key = kFree, child = 0;
    std::int32_t value = kNone;  ///< of the string that ends with this edge
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
  std::uint32_t nodes_ = 1;
  bool first_[256] = {};
};

}  // namespace opgate::text

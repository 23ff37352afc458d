// Strings that are found at the front of a text.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string_view>
#include <vector>

#include "json.h"

namespace opgate::text {

/// A trie over bytes, as a double array: the child of a node for a byte lies at the node's base ^ byte.
class Trie {
 public:
  struct Entry {
    std::string_view string;
    std::int32_t value;  ///< not negative
  };

  Trie() : Trie(std::vector<Entry>()) {}

  /// Of entries with the same string the last one counts. Nothing is found of an empty string.
  explicit Trie(std::vector<Entry> entries) : empty_(true) {
    std::erase_if(entries, [](const Entry& entry) { return entry.string.empty(); });
    std::ranges::stable_sort(entries, {}, &Entry::string);
    for (const Entry& entry : entries) first_[static_cast<unsigned char>(entry.string[0])] = true;
    empty_ = entries.empty();
    add_block();
    take(kRoot, kFree - 1);
    std::vector<Open> open, children;
    if (!empty_) open.push_back({kRoot, 0, entries.size(), 0, 0});
    while (!open.empty()) {
      const Open at = open.back();
      open.pop_back();
      find_children(entries, at, children);
      if (children.empty()) continue;
      const std::uint32_t base = free_base(children);
      units_[at.node].base |= base;
      for (Open& child : children) {
        child.node = base ^ child.byte;
        take(child.node, at.node);
      }
      open.insert(open.end(), children.rbegin(), children.rend());
    }
    taken_ = {};
  }

  /// Whether a string may begin with this byte.
  bool begins(char byte) const { return first_[static_cast<unsigned char>(byte)]; }
  bool empty() const { return empty_; }

  /// Calls use(length, value) for each string at the front of the text, the shortest first.
  template <typename Use>
  void for_each_prefix(std::string_view text, Use use) const {
    std::uint32_t node = kRoot, base = units_[kRoot].base;
    for (std::uint32_t i = 0; i < text.size(); ++i) {
      const std::uint32_t next = base ^ static_cast<unsigned char>(text[i]);
      if (units_[next].parent != node) return;
      node = next;
      base = units_[node].base & ~kEnds;
      if (units_[node].base & kEnds) use(i + 1, values_[node]);
    }
  }

  struct Match {
    std::uint32_t length = 0;  ///< 0: there is none
    std::int32_t value = -1;
  };

  /// The longest string at the front of the text.
  Match longest_prefix(std::string_view text) const {
    Match match;
    for_each_prefix(text, [&](std::uint32_t length, std::int32_t value) { match = {length, value}; });
    return match;
  }

 private:
  static constexpr std::uint32_t kRoot = 0, kFree = 0xffffffff, kEnds = 1u << 31;
  static constexpr std::size_t kMostUnits = std::size_t{1} << 25;
  static constexpr std::size_t kBlock = 256;
  static constexpr std::size_t kWindow = 16 * kBlock;  // only this many of the last units are looked at for free ones
  struct Unit {
    std::uint32_t base = 0;  ///< with kEnds: a string ends here
    std::uint32_t parent = kFree;
  };
  /// A node whose children are not placed yet, and the entries that begin with its string.
  struct Open {
    std::uint32_t node;
    std::size_t first, last, depth;
    unsigned char byte;  ///< the last one of its string
  };

  void find_children(const std::vector<Entry>& entries, const Open& at, std::vector<Open>& children) {
    children.clear();
    for (std::size_t i = at.first; i < at.last; ++i) {
      const std::string_view string = entries[i].string;
      if (string.size() == at.depth) {
        units_[at.node].base |= kEnds;
        values_[at.node] = entries[i].value;
        continue;
      }
      const auto byte = static_cast<unsigned char>(string[at.depth]);
      if (children.empty() || children.back().byte != byte) children.push_back({0, i, i, at.depth + 1, byte});
      children.back().last = i + 1;
    }
  }

  void add_block() {
    if (units_.size() == kMostUnits) throw TokenizerError("model.vocab: more than 32 million bytes");
    units_.resize(units_.size() + kBlock);
    values_.resize(units_.size());
    taken_.resize(units_.size() / 64);
  }
  void take(std::uint32_t at, std::uint32_t parent) {
    units_[at].parent = parent;
    taken_[at / 64] |= std::uint64_t{1} << at % 64;
  }

  /// A base from which all children find a free unit.
  std::uint32_t free_base(const std::vector<Open>& children) {
    for (std::size_t word = (units_.size() - std::min(units_.size(), kWindow)) / 64;; ++word) {
      if (word == taken_.size()) add_block();
      for (std::uint64_t free = ~taken_[word]; free != 0; free &= free - 1) {
        const auto at = static_cast<std::uint32_t>(64 * word + static_cast<std::size_t>(std::countr_zero(free)));
        const std::uint32_t base = at ^ children[0].byte;
        const auto fits = [&](const Open& child) { return units_[base ^ child.byte].parent == kFree; };
        if (std::ranges::all_of(children, fits)) return base;
      }
    }
  }

  std::vector<Unit> units_;
  std::vector<std::int32_t> values_;  // by unit
  std::vector<std::uint64_t> taken_;  // a bit for each unit, while the trie is made
  bool first_[256] = {};
  bool empty_;
};

}  // namespace opgate::text

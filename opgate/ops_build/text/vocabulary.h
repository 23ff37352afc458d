// The tokens of a model and their ids.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"

namespace opgate::text {

inline std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

inline std::uint64_t hash_of(std::string_view text) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15u;
  std::uint64_t hash = text.size() * kOdd, word;
  const char* at = text.data();
  std::size_t left = text.size();
  for (; left >= 8; left -= 8, at += 8) {
    std::memcpy(&word, at, 8);
    hash = mixed(hash ^ word, kOdd);
  }
  word = 0;
  std::memcpy(&word, at, left);
  return mixed(hash ^ word, kOdd);
}

class Vocabulary {
 public:
  /// Ids are less than this, because the texts lie in a list by id.
  static constexpr std::uint32_t kMostIds = 1 << 24;

  explicit Vocabulary(std::size_t tokens = 0) : slots_(std::size_t{16}) {
    while (slots_.size() < 2 * tokens) slots_.resize(2 * slots_.size());
  }

  /// Gives a token an id, in place of the one that it had.
  void set(std::string_view token, std::uint32_t id) {
    if (id >= kMostIds) {
      throw TokenizerError("model.vocab: expected ids less than " + std::to_string(kMostIds) + ", got " +
                           std::to_string(id));
    }
    if (2 * (count_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[place(token)];
    if (slot.length == kFree) {
      slot.hash = static_cast<std::uint32_t>(hash_of(token));
      slot.begin = static_cast<std::uint32_t>(characters_.size());
      slot.length = static_cast<std::uint32_t>(token.size());
      characters_ += token;
      ++count_;
    }
    slot.id = id;
    if (texts_.size() <= id) texts_.resize(id + 1, {0, kFree});
    texts_[id] = {slot.begin, slot.length};
  }

  std::optional<std::uint32_t> find(std::string_view token) const {
    const Slot& slot = slots_[place(token)];
    return slot.length == kFree ? std::nullopt : std::optional(slot.id);
  }

  /// The token with an id; nullopt if there is none.
  std::optional<std::string_view> text(std::uint32_t id) const {
    if (id >= texts_.size() || texts_[id].length == kFree) return std::nullopt;
    return std::string_view(characters_).substr(texts_[id].begin, texts_[id].length);
  }

  /// The number of tokens.
  std::size_t size() const { return count_; }
  /// A number greater than every id.
  std::size_t ids() const { return texts_.size(); }

  /// Calls use(token, id) for each token.
  template <typename Use>
  void for_each(Use use) const {
    for (const Slot& slot : slots_) {
      if (slot.length != kFree) use(std::string_view(characters_).substr(slot.begin, slot.length), slot.id);
    }
  }

 private:
  static constexpr std::uint32_t kFree = 0xffffffff;
  struct Slot {
    std::uint32_t hash = 0, begin = 0, length = kFree, id = 0;
  };
  struct Place {
    std::uint32_t begin, length;
  };

  std::size_t place(std::string_view token) const {
    const std::uint64_t hash = hash_of(token);
    std::size_t at = hash >> 32 & (slots_.size() - 1);
    for (;; at = (at + 1) & (slots_.size() - 1)) {
      const Slot& slot = slots_[at];
      if (slot.length == kFree) return at;
      if (slot.hash == static_cast<std::uint32_t>(hash) && slot.length == token.size() &&
          std::memcmp(characters_.data() + slot.begin, token.data(), token.size()) == 0) {
        return at;
      }
    }
  }

  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.length != kFree) slots_[place(std::string_view(characters_).substr(slot.begin, slot.length))] = slot;
    }
  }

  std::vector<Slot> slots_;
  std::vector<Place> texts_;  // by id
  std::string characters_;
  std::size_t count_ = 0;
};

}  // namespace opgate::text

#include "unicode.h"

#include <algorithm>

namespace opgate::text {
namespace {

#include "unicode_tables.inc"

constexpr char32_t kCodePoints = 0x110000;
constexpr char32_t kSyllables = 0xac00, kSyllablesEnd = 0xd7a4;

std::uint64_t pair_key(char32_t a, char32_t b) { return std::uint64_t{a} << 32 | b; }

}  // namespace

const Unicode& Unicode::tables() {
  static const Unicode unicode;
  return unicode;
}

Unicode::Unicode() {
  std::vector<std::uint32_t> flags(kCodePoints);
  for (std::size_t i = 0; i < std::size(kFlagRuns); i += 2) {
    const std::uint32_t end = i + 2 < std::size(kFlagRuns) ? kFlagRuns[i + 2] : kCodePoints;
    std::fill(flags.begin() + kFlagRuns[i], flags.begin() + end, kFlagRuns[i + 1]);
  }
  canonical_ = mapping(kCanonical);
  compatible_ = mapping(kCompatible);
  lowercase_ = mapping(kLowercase);
  for (std::size_t i = 0; i < std::size(kClassRuns); i += 2) {
    const std::uint32_t end = i + 2 < std::size(kClassRuns) ? kClassRuns[i + 2] : kCodePoints;
    for (char32_t c = kClassRuns[i]; kClassRuns[i + 1] != 0 && c < end; ++c) {
      classes_[c] = static_cast<std::uint8_t>(kClassRuns[i + 1]);
      flags[c] |= kDecomposes | kDecomposesCompatibly | kComposes | kComposesCompatibly;
    }
  }
  for (const auto& [c, combining_class] : classes_) {
    if (!(flags[c] & kNonspacing)) flags[c] |= kKeepsMarks;
  }
  for (const auto& [c, to] : canonical_) {
    flags[c] |= kDecomposes | kDecomposesCompatibly;
    for (const char32_t part : to) flags[c] |= flags[part] & kKeepsMarks;
  }
  for (const auto& [c, to] : compatible_) flags[c] |= kDecomposesCompatibly | kComposesCompatibly;
  for (char32_t c = kSyllables; c < kSyllablesEnd; ++c) flags[c] |= kDecomposes | kDecomposesCompatibly;
  for (const auto& [c, to] : lowercase_) flags[c] |= kUppercase;
  std::unordered_map<char32_t, bool> composed;
  for (std::size_t i = 0; i < std::size(kCompositions); i += 3) {
    compositions_[pair_key(kCompositions[i], kCompositions[i + 1])] = kCompositions[i + 2];
    composed[kCompositions[i + 2]] = true;
    flags[kCompositions[i + 1]] |= kComposes | kComposesCompatibly;
  }
  for (const auto& [c, to] : canonical_) {
    if (!composed.contains(c)) flags[c] |= kComposes | kComposesCompatibly;
  }
  // The vowels and final consonants of Hangul compose with what is before them.
  for (char32_t c = 0x1161; c < 0x11c3; ++c) flags[c] |= kComposes | kComposesCompatibly;

  for (std::size_t i = 0; i < index_.size(); ++i) {
    std::array<std::uint32_t, 256> block;
    std::copy_n(flags.begin() + static_cast<std::ptrdiff_t>(256 * i), 256, block.begin());
    auto at = std::find(blocks_.begin(), blocks_.end(), block);
    if (at == blocks_.end()) at = blocks_.insert(blocks_.end(), block);
    index_[i] = static_cast<std::uint16_t>(at - blocks_.begin());
  }
}

Unicode::Mapping Unicode::mapping(std::span<const std::uint32_t> table) {
  auto values = std::make_unique<char32_t[]>(table.size());
  std::copy(table.begin(), table.end(), values.get());
  Mapping found;
  for (std::size_t i = 0; i < table.size(); i += 2 + table[i + 1]) {
    found[table[i]] = {values.get() + i + 2, table[i + 1]};
  }
  storage_.push_back(std::move(values));
  return found;
}

std::uint32_t Unicode::script(char32_t c) const {
  std::size_t low = 0, high = std::size(kScriptRuns) / 2;  // the run that has c lies in [low, high)
  while (high - low > 1) {
    const std::size_t middle = (low + high) / 2;
    (kScriptRuns[2 * middle] <= c ? low : high) = middle;
  }
  return kScriptRuns[2 * low + 1];
}

std::uint8_t Unicode::combining_class(char32_t c) const {
  if (!has(c, kComposes)) return 0;
  const auto at = classes_.find(c);
  return at == classes_.end() ? std::uint8_t{0} : at->second;
}

std::span<const char32_t> Unicode::decomposition(char32_t c, bool compatible) const {
  if (compatible) {
    if (const auto at = compatible_.find(c); at != compatible_.end()) return at->second;
  }
  const auto at = canonical_.find(c);
  return at == canonical_.end() ? std::span<const char32_t>() : at->second;
}

char32_t Unicode::composition(char32_t a, char32_t b) const {
  constexpr char32_t kLead = 0x1100, kVowel = 0x1161, kTrail = 0x11a7;
  if (a - kLead < 19 && b - kVowel < 21) return kSyllables + ((a - kLead) * 21 + (b - kVowel)) * 28;
  if (a - kSyllables < kSyllablesEnd - kSyllables && (a - kSyllables) % 28 == 0 && b - kTrail - 1 < 27)
    return a + (b - kTrail);
  const auto at = compositions_.find(pair_key(a, b));
  return at == compositions_.end() ? 0 : at->second;
}

std::span<const char32_t> Unicode::lowercase(char32_t c) const { return lowercase_.at(c); }

}  // namespace opgate::text

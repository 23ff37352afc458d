// What `tokenizers` knows of each code point. unicode_tables.py reads it from that package.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace opgate::text {

// The order is that of unicode_tables.py.
enum Flag : std::uint32_t {
  kSpace = 1 << 0,          ///< white space, in Rust's standard library and in regular expressions
  kNumeric = 1 << 1,        ///< numeric, in Rust's standard library
  kPunctuation = 1 << 2,    ///< punctuation, in the Unicode of the crate unicode_categories
  kControl = 1 << 3,        ///< what BertNormalizer cleans away
  kNonspacing = 1 << 4,     ///< the marks that BertNormalizer strips
  kCombining = 1 << 5,      ///< the marks that StripAccents strips
  kWord = 1 << 6,           ///< \w of the crate regex
  kNumber = 1 << 7,         ///< \p{N} of Oniguruma, and so are the following
  kUpper = 1 << 8,          ///< \p{Lu} and \p{Lt}
  kLower = 1 << 9,          ///< \p{Ll}
  kOtherLetter = 1 << 10,   ///< \p{Lm} and \p{Lo}
  kMark = 1 << 11,          ///< \p{M}
  kJoinsBefore = 1 << 12,   ///< belongs to the grapheme before it
  kBreaks = 1 << 13,        ///< a grapheme of its own
  kPrepended = 1 << 14,     ///< belongs to the grapheme behind it
  kPictographic = 1 << 15,  ///< may be joined to another one by U+200D
  kExtends = 1 << 16,       ///< may stand between such a one and U+200D
  kConsonant = 1 << 17,     ///< a consonant of India that a linker joins to another one
  kLinker = 1 << 18,        ///< such a linker
  kConjunct = 1 << 19,      ///< may stand beside a linker
  // unicode.cpp finds these.
  kDecomposes = 1 << 20,            ///< may change in NFD: decomposes, or has a combining class
  kDecomposesCompatibly = 1 << 21,  ///< may change in NFKD
  kComposes = 1 << 22,              ///< may change in NFC
  kComposesCompatibly = 1 << 23,    ///< may change in NFKC
  kUppercase = 1 << 24,             ///< changes when lower-cased
  kKeepsMarks = 1 << 25,            ///< is or has a mark with a combining class that is not kNonspacing

  kLetter = kUpper | kLower | kOtherLetter,
};

class Unicode {
 public:
  static const Unicode& tables();

  std::uint32_t flags(char32_t c) const { return blocks_[index_[c >> 8]][c & 0xff]; }
  bool has(char32_t c, std::uint32_t flags_wanted) const { return (flags(c) & flags_wanted) != 0; }

  /// A number for the script that the pre-tokenizer UnicodeScripts sees; 0 if it takes any.
  std::uint32_t script(char32_t c) const;

  /// The canonical combining class.
  std::uint8_t combining_class(char32_t c) const;

  /// The full decomposition of a code point that isn't a syllable of Hangul; empty if it has none.
  std::span<const char32_t> decomposition(char32_t c, bool compatible) const;

  /// The code point that two compose to; 0 if they don't.
  char32_t composition(char32_t a, char32_t b) const;

  /// The lower case of a code point that has kUppercase.
  std::span<const char32_t> lowercase(char32_t c) const;

 private:
  using Mapping = std::unordered_map<char32_t, std::span<const char32_t>>;

  Unicode();
  Mapping mapping(std::span<const std::uint32_t> table);

  std::array<std::uint16_t, 0x1100> index_{};
  std::vector<std::array<std::uint32_t, 256>> blocks_;
  std::vector<std::unique_ptr<char32_t[]>> storage_;
  std::unordered_map<char32_t, std::uint8_t> classes_;
  Mapping canonical_, compatible_, lowercase_;
  std::unordered_map<std::uint64_t, char32_t> compositions_;
};

}  // namespace opgate::text

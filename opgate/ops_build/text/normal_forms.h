// The normal forms of Unicode.
#pragma once

#include "aligned_text.h"
#include "unicode.h"

namespace opgate::text {

enum class NormalForm { nfd, nfkd, nfc, nfkc };

/// Calls use(part) for the parts that a character decomposes to: itself if it doesn't.
template <typename Use>
void for_each_part(const Unicode& unicode, char32_t c, bool compatible, Use use) {
  constexpr char32_t kSyllables = 0xac00, kLead = 0x1100, kVowel = 0x1161, kTrail = 0x11a7;
  if (c - kSyllables < 11172) {  // a syllable of Hangul
    const char32_t syllable = c - kSyllables;
    use(kLead + syllable / 588);
    use(kVowel + syllable % 588 / 28);
    if (syllable % 28 != 0) use(kTrail + syllable % 28);
    return;
  }
  const std::span<const char32_t> parts = unicode.decomposition(c, compatible);
  if (parts.empty()) use(c);
  for (const char32_t part : parts) use(part);
}

/// Whether a text surely is in a form already.
bool is_normal(std::string_view text, NormalForm form);

/// Writes `text` in a form. Its origins are those of the crate unicode-normalization-alignments.
void normalize(std::string_view text, NormalForm form, Rewriter& out);

}  // namespace opgate::text

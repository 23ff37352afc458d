#include "precompiled.h"

#include <algorithm>

#include "json.h"
#include "unicode.h"

namespace opgate::text {
namespace {

std::string from_base64(std::string_view text, const std::string& where) {
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    const int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (value < 0) throw TokenizerError(where + ": expected base64");
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes += static_cast<char>(bits >> count & 0xff);
    }
  }
  return bytes;
}

// The parts of syllables of Hangul.
bool is_in(char32_t c, char32_t first, char32_t last) { return c - first <= last - first; }
bool is_lead(char32_t c) { return is_in(c, 0x1100, 0x115f) || is_in(c, 0xa960, 0xa97c); }
bool is_vowel(char32_t c) { return is_in(c, 0x1160, 0x11a7) || is_in(c, 0xd7b0, 0xd7c6); }
bool is_trail(char32_t c) { return is_in(c, 0x11a8, 0x11ff) || is_in(c, 0xd7cb, 0xd7fb); }
bool is_syllable(char32_t c) { return is_in(c, 0xac00, 0xd7a3); }

/// Whether two characters belong to one syllable of Hangul.
bool join_syllable(char32_t a, char32_t b) {
  const bool open = is_syllable(a) && (a - 0xac00) % 28 == 0;
  if (is_lead(a)) return is_lead(b) || is_vowel(b) || is_syllable(b);
  if (is_vowel(a) || open) return is_vowel(b) || is_trail(b);
  return (is_trail(a) || is_syllable(a)) && is_trail(b);
}

/// The number of bytes of the grapheme that a text begins with. Two letters of a flag are two graphemes here: each has
/// four bytes, and so a pair is too long for the map.
std::size_t grapheme_at_front(std::string_view text) {
  const Unicode& unicode = Unicode::tables();
  constexpr char32_t kJoiner = 0x200d;
  Character c = character_at(text.data());
  std::uint32_t flags = unicode.flags(c.code);
  std::size_t at = c.length;
  if (text.starts_with("\r\n")) return 2;
  if (flags & kBreaks) return at;
  bool picture = (flags & kPictographic) != 0, joined_picture = false;
  bool consonant = (flags & kConsonant) != 0, linked = false;
  while (at < text.size()) {
    const Character next = character_at(text.data() + at);
    const std::uint32_t next_flags = unicode.flags(next.code);
    if (next_flags & kBreaks) break;
    const bool joins = (next_flags & kJoinsBefore) || (flags & kPrepended) || join_syllable(c.code, next.code) ||
                       (joined_picture && (next_flags & kPictographic)) || (linked && (next_flags & kConsonant));
    if (!joins) break;
    joined_picture = next.code == kJoiner && (picture || (joined_picture && (next_flags & kExtends)));
    picture = (next_flags & kPictographic) || (picture && (next_flags & kExtends));
    linked =
        (next_flags & kJoinsBefore) && consonant && ((next_flags & kLinker) || (linked && (next_flags & kConjunct)));
    consonant =
        (next_flags & kConsonant) || (consonant && (next_flags & kJoinsBefore) && (next_flags & (kLinker | kConjunct)));
    c = next;
    flags = next_flags;
    at += c.length;
  }
  return at;
}

/// What is known of a character.
enum Kind : std::uint8_t {
  kStays = 1,   ///< it is not replaced when it is alone, and joins only what joins anything
  kBegins = 2,  ///< a grapheme begins with it if the character before has kStays
};

/// Writes changes to a Rewriter as `tokenizers` aligns them.
class Edits {
 public:
  explicit Edits(Rewriter& out) : out_(out) {}
  ~Edits() { flush(); }
  Edits(const Edits&) = delete;
  Edits& operator=(const Edits&) = delete;

  /// Keeps the bytes of `text` from `begin` to `end`.
  void keep(std::string_view text, std::size_t begin, std::size_t end) {
    flush();
    any_ = true;
    if (out_.at() == begin) return out_.keep_to(static_cast<std::uint32_t>(end));
    while (begin < end) {  // what was left out at the front still counts
      const Character c = character_at(text.data() + begin);
      out_.write(c.code, 0);
      begin += c.length;
    }
  }

  /// Writes `to` in place of `from`.
  void replace(std::string_view from, std::string_view to) {
    const int before = count(from), after = count(to);
    int i = 0;
    for (std::size_t at = 0; at < to.size(); ++i) {
      const Character c = character_at(to.data() + at);
      flush();
      last_ = {c.code, i < before ? 0 : 1};
      waits_ = true;
      at += c.length;
    }
    if (after < before) leave_out(before - after);
  }

 private:
  struct Edit {
    char32_t code;
    int change;
  };

  static int count(std::string_view text) {
    int characters = 0;
    for (const char byte : text) characters += !continues(byte);
    return characters;
  }
  void flush() {
    if (!waits_) return;
    out_.write(last_.code, last_.change);
    waits_ = false;
    any_ = true;
  }
  /// What is left out counts as left out behind the character before, which may be that of another change.
  void leave_out(int characters) {
    if (waits_) {
      last_.change -= characters;
    } else if (any_) {
      for (; characters > 0; --characters) out_.drop();
    }
  }

  Rewriter& out_;
  Edit last_{};
  bool waits_ = false;  // last_ is not yet written
  bool any_ = false;
};

}  // namespace

Precompiled::Precompiled(const std::string& base64, const std::string& where) {
  const std::string bytes = from_base64(base64, where);
  const auto unit = [&](std::size_t i) {
    std::uint32_t value = 0;
    for (std::size_t k = 0; k < 4; ++k) value |= std::uint32_t{static_cast<unsigned char>(bytes[4 * i + k])} << 8 * k;
    return value;
  };
  if (bytes.size() < 4 || unit(0) % 4 != 0 || unit(0) > bytes.size() - 4) {
    throw TokenizerError(where + ": expected the number of bytes of a trie, and the trie");
  }
  for (std::size_t i = 1; i <= unit(0) / 4; ++i) units_.push_back(unit(i));
  texts_ = bytes.substr(4 + unit(0));
  if (units_.empty() || !is_utf8(texts_)) throw TokenizerError(where + ": expected a trie and texts in UTF-8");
  const Unicode& unicode = Unicode::tables();
  kinds_.resize(0x10000);
  for (char32_t c = 0; c < kinds_.size(); ++c) {
    char character[4];
    const std::string_view alone(character, write_character(c, character));
    const bool joins_next = c == '\r' || unicode.has(c, kPrepended) || is_lead(c);
    const bool joins_before = unicode.has(c, kJoinsBefore) || is_vowel(c) || is_trail(c);
    if (!joins_next && !replacement(alone)) kinds_[c] |= kStays;
    if (!joins_before) kinds_[c] |= kBegins;
  }
}

std::size_t Precompiled::kept(std::string_view text, std::size_t at) const {
  const std::size_t begin = at;
  const auto kind_of = [&](char32_t c) { return c < kinds_.size() ? kinds_[c] : std::uint8_t{0}; };
  Character c = character_at(text.data() + at);
  while (kind_of(c.code) & kStays) {
    if (at + c.length == text.size()) return text.size() - begin;
    const Character next = character_at(text.data() + at + c.length);
    if (!(kind_of(next.code) & kBegins)) break;
    at += c.length;
    c = next;
  }
  return at - begin;
}

std::optional<std::string_view> Precompiled::replacement(std::string_view text) const {
  const auto offset = [](std::uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); };
  std::size_t node = offset(units_[0]);
  for (const char byte : text) {
    if (byte == 0) break;
    node ^= static_cast<unsigned char>(byte);
    if (node >= units_.size() || (units_[node] & 0x800000ffu) != static_cast<unsigned char>(byte)) break;
    const std::uint32_t unit = units_[node];
    node ^= offset(unit);
    if (unit & 1u << 8) {
      if (node >= units_.size()) break;
      const std::size_t begin = units_[node] & 0x7fffffffu;
      if (begin > texts_.size()) break;
      return std::string_view(texts_).substr(begin, texts_.find('\0', begin) - begin);
    }
  }
  return std::nullopt;
}

void Precompiled::write(std::string_view text, Rewriter& out) const {
  constexpr std::size_t kLongest = 5;  // longer graphemes are replaced character by character
  Edits edits(out);
  for (std::size_t at = 0; at < text.size();) {
    if (const std::size_t size = kept(text, at)) {
      edits.keep(text, at, at + size);
      at += size;
      continue;
    }
    const std::size_t end = at + grapheme_at_front(text.substr(at));
    const std::string_view grapheme = text.substr(at, end - at);
    if (const auto to = grapheme.size() <= kLongest ? replacement(grapheme) : std::nullopt) {
      edits.replace(grapheme, *to);
      at = end;
    }
    while (at < end) {
      const std::string_view character = text.substr(at, character_at(text.data() + at).length);
      if (const auto to = replacement(character))
        edits.replace(character, *to);
      else
        edits.keep(text, at, at + character.size());
      at += character.size();
    }
  }
}

}  // namespace opgate::text

#include "scanners.h"

#include <algorithm>

#include "unicode.h"

namespace opgate::text {
namespace {

/// Reads a text from left to right.
class Reader {
 public:
  explicit Reader(std::string_view text) : begin_(text.data()), at_(text.data()), end_(text.data() + text.size()) {}

  bool done() const { return at_ == end_; }
  std::uint32_t at() const { return static_cast<std::uint32_t>(at_ - begin_); }
  void go_to(std::uint32_t at) { at_ = begin_ + at; }

  /// The next character and its flags; 0 behind the end.
  char32_t peek() const { return done() ? 0 : character_at(at_).code; }
  std::uint32_t flags() const { return done() ? 0 : unicode_.flags(character_at(at_).code); }
  /// The flags of the character behind the next one.
  std::uint32_t flags_after() const {
    if (done()) return 0;
    const char* const next = at_ + character_at(at_).length;
    return next == end_ ? 0 : unicode_.flags(character_at(next).code);
  }
  /// Whether there is a character behind the next one.
  bool more_after() const { return !done() && at_ + character_at(at_).length < end_; }
  void skip() { at_ += character_at(at_).length; }

  /// Passes over characters while wanted(code, flags), `most` at most. Returns how many.
  template <typename Wanted>
  std::size_t skip_while(Wanted wanted, std::size_t most = static_cast<std::size_t>(-1)) {
    std::size_t count = 0;
    while (at_ < end_ && count < most) {
      const Character c = character_at(at_);
      if (!wanted(c.code, unicode_.flags(c.code))) break;
      at_ += c.length;
      ++count;
    }
    return count;
  }

  std::string_view rest() const { return {at_, static_cast<std::size_t>(end_ - at_)}; }

 private:
  const Unicode& unicode_ = Unicode::tables();
  const char *begin_, *at_, *end_;
};

bool is_letter(char32_t, std::uint32_t flags) { return (flags & kLetter) != 0; }
bool is_number(char32_t, std::uint32_t flags) { return (flags & kNumber) != 0; }
bool is_space(char32_t, std::uint32_t flags) { return (flags & kSpace) != 0; }
bool is_symbol(char32_t, std::uint32_t flags) { return (flags & (kSpace | kLetter | kNumber)) == 0; }
bool is_line_end(char32_t c) { return c == '\r' || c == '\n'; }

/// The bytes of 's, 't, 're, 've, 'm, 'll or 'd at the front of a text; 0 if none of them is there. Without case, the
/// long s (U+017F) is an s too.
std::uint32_t contraction(std::string_view text, bool with_case) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  const auto lower = [&](std::size_t i) {
    if (i >= text.size()) return '\0';
    const char c = text[i];
    return !with_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  };
  switch (lower(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd': return 2;
    case 'r':
    case 'v': return lower(2) == 'e' ? 3 : 0;
    case 'l': return lower(2) == 'l' ? 3 : 0;
    default: return !with_case && text.substr(1, 2) == "\u017f" ? 3 : 0;
  }
}

/// Passes over \s+(?!\S)|\s+. The last white space before something else is left for that, unless it is alone.
void skip_space(Reader& reader) {
  std::uint32_t last = reader.at();
  std::size_t count = 0;
  while (!reader.done() && is_space(0, reader.flags())) {
    last = reader.at();
    reader.skip();
    ++count;
  }
  if (!reader.done() && count > 1) reader.go_to(last);
}

void scan_gpt2(std::string_view text, std::vector<Range>& matches) {
  Reader reader(text);
  while (!reader.done()) {
    const std::uint32_t begin = reader.at();
    if (const std::uint32_t length = contraction(reader.rest(), true)) {
      reader.go_to(begin + length);
    } else {
      const bool space = reader.peek() == ' ';
      const std::uint32_t flags = space ? reader.flags_after() : reader.flags();
      const bool last = space && reader.at() + 1 == text.size();
      if (last || (flags & kSpace)) {
        if (space || (flags & kSpace)) skip_space(reader);
      } else {
        if (space) reader.skip();
        reader.skip_while((flags & kLetter) ? is_letter : (flags & kNumber) ? is_number : is_symbol);
      }
    }
    matches.push_back({begin, reader.at()});
  }
}

void scan_clip(std::string_view text, std::vector<Range>& matches) {
  Reader reader(text);
  while (!reader.done()) {
    const std::uint32_t begin = reader.at(), flags = reader.flags();
    if (flags & kSpace) {
      reader.skip();
      continue;
    }
    std::uint32_t length = contraction(reader.rest(), true);
    for (const std::string_view token : {"<|startoftext|>", "<|endoftext|>"}) {
      if (reader.rest().starts_with(token)) length = static_cast<std::uint32_t>(token.size());
    }
    if (length > 0)
      reader.go_to(begin + length);
    else if (flags & kNumber)
      reader.skip();
    else
      reader.skip_while(flags & kLetter ? is_letter : is_symbol);
    matches.push_back({begin, reader.at()});
  }
}

/// Passes over the end of the expressions below, " ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+", at a character
/// that is neither a letter nor a number. `slash`: [\r\n/]*.
void skip_symbols_or_space(Reader& reader, bool slash) {
  const bool space = reader.peek() == ' ';
  if (space ? reader.more_after() && is_symbol(0, reader.flags_after()) : is_symbol(0, reader.flags())) {
    if (space) reader.skip();
    reader.skip_while(is_symbol);
    reader.skip_while([slash](char32_t c, std::uint32_t) { return is_line_end(c) || (slash && c == '/'); });
    return;
  }
  // "\s*[\r\n]+" ends behind the last end of a line in the white space.
  const std::uint32_t begin = reader.at();
  std::uint32_t end = begin;
  while (!reader.done() && is_space(0, reader.flags())) {
    const bool line_end = is_line_end(reader.peek());
    reader.skip();
    if (line_end) end = reader.at();
  }
  reader.go_to(end);
  if (end == begin) skip_space(reader);
}

/// The expression of cl100k and Llama 3, and with one digit that of Qwen 2.
template <std::size_t kDigits>
void scan_cl100k(std::string_view text, std::vector<Range>& matches) {
  Reader reader(text);
  while (!reader.done()) {
    const std::uint32_t begin = reader.at();
    const char32_t c = reader.peek();
    const std::uint32_t flags = reader.flags();
    if (const std::uint32_t length = contraction(reader.rest(), false)) {
      reader.go_to(begin + length);
    } else if ((flags & kLetter) || (!(flags & kNumber) && !is_line_end(c) && (reader.flags_after() & kLetter))) {
      reader.skip();
      reader.skip_while(is_letter);
    } else if (flags & kNumber) {
      reader.skip_while(is_number, kDigits);
    } else {
      skip_symbols_or_space(reader, false);
    }
    matches.push_back({begin, reader.at()});
  }
}

/// Passes over a word of o200k: upper case, then lower case; letters without case and marks are both. Where no lower
/// case follows, a word that has a letter of both ends behind the last one of them. Without lower case at all, it
/// passes over the upper case and returns false.
bool skip_cased_word(Reader& reader) {
  constexpr std::uint32_t kBoth = kOtherLetter | kMark;
  std::uint32_t last = 0;
  bool any = false;
  while (!reader.done() && (reader.flags() & (kUpper | kBoth))) {
    const bool both = (reader.flags() & kBoth) != 0;
    reader.skip();
    if (both) last = reader.at();
    any = any || both;
  }
  if (reader.skip_while([](char32_t, std::uint32_t flags) { return (flags & (kLower | kBoth)) != 0; }) > 0) return true;
  if (any) reader.go_to(last);
  return any;
}

void scan_o200k(std::string_view text, std::vector<Range>& matches) {
  Reader reader(text);
  while (!reader.done()) {
    const std::uint32_t begin = reader.at();
    const std::uint32_t flags = reader.flags();
    const bool prefix = !(flags & (kLetter | kNumber)) && !is_line_end(reader.peek());
    if (prefix) reader.skip();
    const std::uint32_t word = reader.at();
    bool found = (prefix || (flags & kLetter)) && skip_cased_word(reader);
    if (!found && (flags & kMark)) {
      reader.go_to(begin);
      found = skip_cased_word(reader);
    }
    if (found || reader.at() > word) {
      reader.go_to(reader.at() + contraction(reader.rest(), false));
    } else if (flags & kNumber) {
      reader.skip_while(is_number, 3);
    } else {
      reader.go_to(begin);
      skip_symbols_or_space(reader, true);
    }
    matches.push_back({begin, reader.at()});
  }
}

/// Runs of spaces, as SentencePiece joins them.
void scan_spaces(std::string_view text, std::vector<Range>& matches) {
  for (std::size_t at = text.find("  "); at != std::string_view::npos; at = text.find("  ", at)) {
    const std::size_t end = std::min(text.find_first_not_of(' ', at), text.size());
    matches.push_back({static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(end)});
    at = end;
  }
}

struct Known {
  std::string_view expression;
  Scanner scanner;
};

constexpr Known kKnown[] = {
    {kGpt2Pattern, scan_gpt2},
    {" {2,}", scan_spaces},
    {R"(<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+)", scan_clip},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     scan_cl100k<3>},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     scan_cl100k<1>},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     scan_o200k},
};

}  // namespace

Scanner scanner_of(std::string_view expression) {
  for (const Known& known : kKnown) {
    if (known.expression == expression) return known.scanner;
  }
  return nullptr;
}

}  // namespace opgate::text

#include "pre_tokenizers.h"

#include <algorithm>

#include "bytes_alphabet.h"
#include "pattern.h"
#include "scanners.h"
#include "unicode.h"

namespace opgate::text {
namespace {

enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

Behavior behavior_of(const Json& json, const std::string& where) {
  const std::string& name = json.text(where);
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  throw TokenizerError(where + ": unknown behavior '" + name + "'");
}

/// Cuts a range at matches. `invert` takes what lies between matches for matches.
void cut_at(Pieces& pieces, Range range, std::span<const Range> matches, Behavior behavior, bool invert) {
  Range last{range.begin, range.begin};
  bool before = false, any = false;
  const auto put = [&](Range part, bool match) {
    match = match != invert;
    const bool joins = (behavior == Behavior::contiguous && match == before) ||
                       (behavior == Behavior::merged_with_previous && match && !before) ||
                       (behavior == Behavior::merged_with_next && !match && before);
    before = match;
    if (any && joins) {
      last.end = part.end;
      return;
    }
    if (any) pieces.cut(last);
    last = part;
    any = !(behavior == Behavior::removed && match);
  };
  std::uint32_t at = range.begin;
  for (const Range match : matches) {
    const Range shifted{range.begin + match.begin, range.begin + match.end};
    if (at != shifted.begin) put({at, shifted.begin}, false);
    put(shifted, true);
    at = shifted.end;
  }
  if (at != range.end) put({at, range.end}, false);
  if (any) pieces.cut(last);
}

/// Cuts at the characters that Wanted takes.
template <typename Wanted>
void cut_at_characters(Pieces& pieces, Behavior behavior, Wanted wanted) {
  pieces.cut_each([&](Range range) {
    pieces.matches.clear();
    const std::string_view text = pieces.text.view(range);
    for (std::uint32_t at = 0; at < text.size();) {
      const Character c = character_at(text.data() + at);
      if (wanted(c.code)) pieces.matches.push_back({at, at + c.length});
      at += c.length;
    }
    cut_at(pieces, range, pieces.matches, behavior, false);
  });
}

bool is_punctuation(const Unicode& unicode, char32_t c) { return unicode.has(c, kPunctuation); }

class BertPreTokenizer : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    const Unicode& unicode = Unicode::tables();
    pieces.cut_each([&](Range range) {
      const std::string_view text = pieces.text.view();
      std::uint32_t begin = range.begin;
      for (std::uint32_t at = range.begin; at < range.end;) {
        const Character c = character_at(text.data() + at);
        const std::uint32_t flags = unicode.flags(c.code);
        if (flags & (kSpace | kPunctuation)) {
          pieces.cut({begin, at});
          begin = at + c.length;
          if (!(flags & kSpace)) pieces.cut({at, begin});
        }
        at += c.length;
      }
      pieces.cut({begin, range.end});
    });
  }
};

/// \w+|[^\w\s]+ of the crate regex.
class Whitespace : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    const Unicode& unicode = Unicode::tables();
    pieces.cut_each([&](Range range) {
      const std::string_view text = pieces.text.view();
      std::uint32_t begin = range.begin, before = kSpace;
      for (std::uint32_t at = range.begin; at < range.end;) {
        const Character c = character_at(text.data() + at);
        const std::uint32_t kind = unicode.flags(c.code) & (kWord | kSpace);
        if (kind != before) {
          if (before != kSpace) pieces.cut({begin, at});
          begin = at;
          before = kind;
        }
        at += c.length;
      }
      if (before != kSpace) pieces.cut({begin, range.end});
    });
  }
};

class WhitespaceSplit : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    cut_at_characters(pieces, Behavior::removed,
                      [&unicode = Unicode::tables()](char32_t c) { return unicode.has(c, kSpace); });
  }
};

class Punctuation : public PreTokenizer {
 public:
  explicit Punctuation(Behavior behavior) : behavior_(behavior) {}
  void apply(Pieces& pieces) const override {
    cut_at_characters(pieces, behavior_,
                      [&unicode = Unicode::tables()](char32_t c) { return is_punctuation(unicode, c); });
  }

 private:
  Behavior behavior_;
};

class Digits : public PreTokenizer {
 public:
  explicit Digits(bool individual) : behavior_(individual ? Behavior::isolated : Behavior::contiguous) {}
  void apply(Pieces& pieces) const override {
    cut_at_characters(pieces, behavior_,
                      [&unicode = Unicode::tables()](char32_t c) { return unicode.has(c, kNumeric); });
  }

 private:
  Behavior behavior_;
};

class UnicodeScripts : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    const Unicode& unicode = Unicode::tables();
    pieces.cut_each([&](Range range) {
      const std::string_view text = pieces.text.view();
      constexpr std::uint32_t kAny = 0;
      std::uint32_t begin = range.end, before = kAny;  // characters of any script at the front are left out
      for (std::uint32_t at = range.begin; at < range.end;) {
        const Character c = character_at(text.data() + at);
        const std::uint32_t script = unicode.script(c.code);
        if (script != kAny && script != before) {
          pieces.cut({begin, at});
          begin = at;
          before = script;
        }
        at += c.length;
      }
      pieces.cut({begin, range.end});
    });
  }
};

/// The one character of a string.
char32_t character_of(const Json& json, const std::string& where) {
  const std::string& text = json.text(where);
  if (text.empty() || character_at(text.data()).length != text.size()) {
    throw TokenizerError(where + ": expected one character, got '" + text + "'");
  }
  return character_at(text.data()).code;
}

class CharDelimiterSplit : public PreTokenizer {
 public:
  explicit CharDelimiterSplit(char32_t delimiter) : delimiter_(delimiter) {}
  void apply(Pieces& pieces) const override {
    cut_at_characters(pieces, Behavior::removed, [this](char32_t c) { return c == delimiter_; });
  }

 private:
  char32_t delimiter_;
};

class FixedLength : public PreTokenizer {
 public:
  explicit FixedLength(std::uint64_t length) : length_(length) {}
  void apply(Pieces& pieces) const override {
    pieces.cut_each([&](Range range) {
      const std::string_view text = pieces.text.view();
      std::uint32_t begin = range.begin;
      std::uint64_t count = 0;
      for (std::uint32_t at = range.begin; at < range.end;) {
        at += character_at(text.data() + at).length;
        if (++count == length_) {
          pieces.cut({begin, at});
          begin = at;
          count = 0;
        }
      }
      pieces.cut({begin, range.end});
    });
  }

 private:
  std::uint64_t length_;
};

class Split : public PreTokenizer {
 public:
  Split(std::unique_ptr<Pattern> pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void apply(Pieces& pieces) const override {
    pieces.cut_each([&](Range range) {
      pieces.matches.clear();
      pattern_->find(pieces.text.view(range), pieces.matches);
      cut_at(pieces, range, pieces.matches, behavior_, invert_);
    });
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  Behavior behavior_;
  bool invert_;
};

class PrefixSpace : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    const auto lacks = [&](const Piece& piece) {
      return piece.token == kNoToken && !pieces.text.view(piece.range).starts_with(' ');
    };
    if (std::ranges::none_of(pieces.pieces, lacks)) return;
    pieces.rewrite_each([&](const Piece& piece, Rewriter& out) {
      if (lacks(piece)) out.prepend(" ");
      out.keep_rest();
    });
  }
};

class Bytes : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    pieces.rewrite_each([&](const Piece& piece, Rewriter& out) { write_bytes(pieces.text.view(piece.range), out); });
  }
};

class Metaspace : public PreTokenizer {
 public:
  Metaspace(const Json& json, const std::string& where)
      : replacement_(character_of(json.at("replacement", where), where + ".replacement")),
        scheme_(json.text_or("prepend_scheme", "always", where)),
        split_(json.boolean_or("split", true, where)) {
    if (scheme_ != "always" && scheme_ != "first" && scheme_ != "never") {
      throw TokenizerError(where + ".prepend_scheme: expected always, first or never, got '" + scheme_ + "'");
    }
    if (scheme_ != "never" && !json.boolean_or("add_prefix_space", true, where)) {
      throw TokenizerError(where + ": add_prefix_space contradicts prepend_scheme");
    }
    append_character(text_, replacement_);
  }

  void apply(Pieces& pieces) const override {
    pieces.rewrite_each([&](const Piece& piece, Rewriter& out) {
      const bool wants = scheme_ == "always" || (scheme_ == "first" && piece.shift == 0);
      if (wants && out.peek() != ' ' && out.peek() != replacement_) out.prepend(text_);
      const std::string_view text = pieces.text.view().substr(0, piece.range.end);
      for (;;) {
        const std::size_t space = text.find(' ', out.at());
        if (space == std::string_view::npos) break;
        out.keep_to(static_cast<std::uint32_t>(space));
        out.replace(replacement_);
      }
      out.keep_rest();
    });
    if (!split_) return;
    pieces.cut_each([&](Range range) {
      const std::string_view text = pieces.text.view().substr(0, range.end);
      while (range.begin < range.end) {
        range.end = static_cast<std::uint32_t>(std::min(text.find(text_, range.begin + 1), text.size()));
        pieces.cut(range);
        range = {range.end, static_cast<std::uint32_t>(text.size())};
      }
    });
  }

 private:
  char32_t replacement_;
  std::string scheme_, text_;
  bool split_;
};

void append(const Json& json, const std::string& where, PreTokenizers& to) {
  const std::string type = json.at("type", where).text(where + ".type");
  auto& steps = to.steps;
  if (to.bytes) {
    steps.push_back(std::make_unique<Bytes>());
    to.bytes = false;
  }
  if (type == "Sequence") {
    int i = 0;
    for (const Json& part : json.at("pretokenizers", where).items(where + ".pretokenizers")) {
      append(part, where + ".pretokenizers[" + std::to_string(i++) + "]", to);
    }
  } else if (type == "BertPreTokenizer") {
    steps.push_back(std::make_unique<BertPreTokenizer>());
  } else if (type == "ByteLevel") {
    if (json.at("add_prefix_space", where).boolean(where + ".add_prefix_space")) {
      steps.push_back(std::make_unique<PrefixSpace>());
    }
    if (json.boolean_or("use_regex", true, where)) {
      steps.push_back(
          std::make_unique<Split>(regular_expression(std::string(kGpt2Pattern), where), Behavior::isolated, false));
    }
    to.bytes = true;
  } else if (type == "Metaspace") {
    steps.push_back(std::make_unique<Metaspace>(json, where));
  } else if (type == "Whitespace") {
    steps.push_back(std::make_unique<Whitespace>());
  } else if (type == "WhitespaceSplit") {
    steps.push_back(std::make_unique<WhitespaceSplit>());
  } else if (type == "UnicodeScripts") {
    steps.push_back(std::make_unique<UnicodeScripts>());
  } else if (type == "Digits") {
    steps.push_back(
        std::make_unique<Digits>(json.at("individual_digits", where).boolean(where + ".individual_digits")));
  } else if (type == "CharDelimiterSplit") {
    steps.push_back(
        std::make_unique<CharDelimiterSplit>(character_of(json.at("delimiter", where), where + ".delimiter")));
  } else if (type == "FixedLength") {
    const Json* length = json.find("length");
    const std::uint64_t characters = length ? length->whole(where + ".length") : 5;
    if (characters == 0) throw TokenizerError(where + ".length: expected a positive number");
    steps.push_back(std::make_unique<FixedLength>(characters));
  } else if (type == "Punctuation") {
    const Json* behavior = json.find("behavior");
    steps.push_back(
        std::make_unique<Punctuation>(behavior ? behavior_of(*behavior, where + ".behavior") : Behavior::isolated));
  } else if (type == "Split") {
    steps.push_back(std::make_unique<Split>(pattern_of(json.at("pattern", where), where + ".pattern"),
                                            behavior_of(json.at("behavior", where), where + ".behavior"),
                                            json.at("invert", where).boolean(where + ".invert")));
  } else {
    throw TokenizerError(where + ": unknown pre-tokenizer '" + type + "'");
  }
}

}  // namespace

PreTokenizers pre_tokenizers_of(const Json& json, const std::string& where) {
  PreTokenizers found;
  if (!json.null()) append(json, where, found);
  return found;
}

}  // namespace opgate::text

#include "normalizers.h"

#include <algorithm>
#include <utility>

#include "bytes_alphabet.h"
#include "normal_forms.h"
#include "pattern.h"
#include "precompiled.h"
#include "unicode.h"

namespace opgate::text {
namespace {

/// Passes a Rewriter over the whole text.
template <typename Write>
void rewrite(AlignedText& text, AlignedText& spare, Write write) {
  spare.assign({}, 0);
  Rewriter out(text, {0, text.size()}, text.shift(), spare);
  write(out);
  spare.set_shift(text.shift());
  std::swap(text, spare);
}

void lowercase(AlignedText& text, AlignedText& spare) {
  if (is_ascii(text.view())) {
    for (char *at = text.bytes(), *end = at + text.size(); at < end; ++at) {
      if (*at >= 'A' && *at <= 'Z') *at = static_cast<char>(*at | 0x20);
    }
    return;
  }
  const Unicode& unicode = Unicode::tables();
  rewrite(text, spare, [&](Rewriter& out) {
    while (out.more()) {
      const char32_t c = out.peek();
      if (!unicode.has(c, kUppercase)) {
        out.keep();
        continue;
      }
      const auto lower = unicode.lowercase(c);
      out.replace(lower[0]);
      for (const char32_t more : lower.subspan(1)) out.insert(more);
    }
  });
}

void filter(AlignedText& text, AlignedText& spare, std::uint32_t left_out) {
  const Unicode& unicode = Unicode::tables();
  rewrite(text, spare, [&](Rewriter& out) {
    while (out.more()) {
      if (unicode.has(out.peek(), left_out))
        out.drop();
      else
        out.keep();
    }
  });
}

void to_form(AlignedText& text, AlignedText& spare, NormalForm form) {
  if (is_normal(text.view(), form)) return;
  rewrite(text, spare, [&](Rewriter& out) { normalize(text.view(), form, out); });
}

class Form : public Normalizer {
 public:
  explicit Form(NormalForm form) : form_(form) {}
  void apply(AlignedText& text, AlignedText& spare) const override { to_form(text, spare, form_); }

 private:
  NormalForm form_;
};

class Lowercase : public Normalizer {
 public:
  void apply(AlignedText& text, AlignedText& spare) const override { lowercase(text, spare); }
};

class StripAccents : public Normalizer {
 public:
  void apply(AlignedText& text, AlignedText& spare) const override {
    if (!is_ascii(text.view())) filter(text, spare, kCombining);
  }
};

class Bert : public Normalizer {
 public:
  Bert(const Json& json, const std::string& where)
      : clean_(json.at("clean_text", where).boolean(where + ".clean_text")),
        chinese_(json.at("handle_chinese_chars", where).boolean(where + ".handle_chinese_chars")),
        lowercase_(json.at("lowercase", where).boolean(where + ".lowercase")),
        strip_accents_(json.boolean_or("strip_accents", lowercase_, where)) {}

  void apply(AlignedText& text, AlignedText& spare) const override {
    if (is_ascii(text.view()) && !(clean_ && has_control(text.view()))) {
      if (clean_) {
        for (char *at = text.bytes(), *end = at + text.size(); at < end; ++at) {
          if (static_cast<unsigned char>(*at) < ' ') *at = ' ';
        }
      }
    } else if (is_mapped(text.view())) {
      return map_characters(text, spare);
    } else {
      if (clean_) clean(text, spare);
      if (chinese_) separate_chinese(text, spare);
      if (strip_accents_) {
        to_form(text, spare, NormalForm::nfd);
        if (!is_ascii(text.view())) filter(text, spare, kNonspacing);
      }
    }
    if (lowercase_) text::lowercase(text, spare);
  }

 private:
  /// Whether ASCII text has a control character that isn't white space.
  static bool has_control(std::string_view text) {
    return std::ranges::any_of(text, [](char c) {
      return (static_cast<unsigned char>(c) < ' ' && c != '\t' && c != '\n' && c != '\r') || c == 0x7f;
    });
  }

  /// Whether the characters can be mapped one by one: stripping accents changes the order of no marks that stay.
  bool is_mapped(std::string_view text) const {
    if (!strip_accents_) return true;
    const Unicode& unicode = Unicode::tables();
    for (const char *at = text.data(), *end = at + text.size(); at < end;) {
      const Character c = character_at(at);
      if (unicode.has(c.code, kKeepsMarks)) return false;
      at += c.length;
    }
    return true;
  }

  /// All steps at once, for each character. What it becomes has its origin.
  void map_characters(AlignedText& text, AlignedText& spare) const {
    const Unicode& unicode = Unicode::tables();
    const std::uint32_t special = (clean_ ? kControl | kSpace : 0u) |
                                  (strip_accents_ ? kDecomposes | kNonspacing : 0u) | (lowercase_ ? kUppercase : 0u);
    rewrite(text, spare, [&](Rewriter& out) {
      while (out.more()) {
        const char32_t c = out.peek();
        const std::uint32_t flags = unicode.flags(c);
        const bool chinese = chinese_ && is_chinese(c);
        if (!chinese && (flags & special) == 0) {
          out.keep();
        } else if (clean_ && (flags & (kControl | kSpace))) {
          if (flags & kControl)
            out.drop();
          else
            out.replace(' ');
        } else {
          bool first = true;
          const auto put = [&](char32_t part) {
            if (std::exchange(first, false))
              out.replace(part);
            else
              out.insert(part);
          };
          if (chinese) put(' ');
          map_parts(unicode, c, flags, put);
          if (chinese) put(' ');
          if (first) out.drop();
        }
      }
    });
  }

  /// Calls put() for the lower case of the parts that are no accents.
  template <typename Put>
  void map_parts(const Unicode& unicode, char32_t c, std::uint32_t flags, Put put) const {
    const auto put_part = [&](char32_t part) {
      const std::uint32_t of_part = unicode.flags(part);
      if (strip_accents_ && (of_part & kNonspacing)) return;
      if (!lowercase_ || !(of_part & kUppercase)) return put(part);
      for (const char32_t lower : unicode.lowercase(part)) put(lower);
    };
    if (strip_accents_ && (flags & kDecomposes))
      for_each_part(unicode, c, false, put_part);
    else
      put_part(c);
  }

  static void clean(AlignedText& text, AlignedText& spare) {
    const Unicode& unicode = Unicode::tables();
    rewrite(text, spare, [&](Rewriter& out) {
      while (out.more()) {
        const std::uint32_t flags = unicode.flags(out.peek());
        if (flags & kControl)
          out.drop();
        else if (flags & kSpace)
          out.replace(' ');
        else
          out.keep();
      }
    });
  }

  static bool is_chinese(char32_t c) {
    const auto in = [c](char32_t first, char32_t last) { return c - first <= last - first; };
    return in(0x4e00, 0x9fff) || in(0x3400, 0x4dbf) || in(0x20000, 0x2a6df) || in(0x2a700, 0x2b73f) ||
           in(0x2b740, 0x2b81f) || in(0x2b920, 0x2ceaf) || in(0xf900, 0xfaff) || in(0x2f800, 0x2fa1f);
  }

  static void separate_chinese(AlignedText& text, AlignedText& spare) {
    bool any = false;
    for (const char *at = text.view().data(), *end = at + text.size(); at < end && !any;) {
      const Character c = character_at(at);
      any = is_chinese(c.code);
      at += c.length;
    }
    if (!any) return;
    rewrite(text, spare, [&](Rewriter& out) {
      while (out.more()) {
        const char32_t c = out.peek();
        if (!is_chinese(c)) {
          out.keep();
          continue;
        }
        out.replace(' ');
        out.insert(c);
        out.insert(' ');
      }
    });
  }

  bool clean_, chinese_, lowercase_, strip_accents_;
};

class Strip : public Normalizer {
 public:
  Strip(const Json& json, const std::string& where)
      : left_(json.at("strip_left", where).boolean(where + ".strip_left")),
        right_(json.at("strip_right", where).boolean(where + ".strip_right")) {}

  void apply(AlignedText& text, AlignedText& spare) const override {
    const Unicode& unicode = Unicode::tables();
    const std::string_view view = text.view();
    std::size_t begin = 0, end = view.size();
    while (left_ && begin < end) {
      const Character c = character_at(view.data() + begin);
      if (!unicode.has(c.code, kSpace)) break;
      begin += c.length;
    }
    while (right_ && begin < end) {
      const Character c = character_before(view.data() + end);
      if (!unicode.has(c.code, kSpace)) break;
      end -= c.length;
    }
    if (begin == 0 && end == view.size()) return;
    rewrite(text, spare, [&](Rewriter& out) {
      for (std::size_t at = 0; out.more();) {
        const std::size_t length = character_at(view.data() + at).length;
        if (at < begin || at >= end)
          out.drop();
        else
          out.keep();
        at += length;
      }
    });
  }

 private:
  bool left_, right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}

  void apply(AlignedText& text, AlignedText& spare) const override {
    if (text.empty()) return;
    rewrite(text, spare, [&](Rewriter& out) {
      out.prepend(prefix_);
      out.keep_rest();
    });
  }

 private:
  std::string prefix_;
};

class Replace : public Normalizer {
 public:
  Replace(std::unique_ptr<Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void apply(AlignedText& text, AlignedText& spare) const override {
    std::vector<Range> matches;
    pattern_->find(text.view(), matches);
    if (matches.empty()) return;
    rewrite(text, spare, [&](Rewriter& out) {
      for (const Range match : matches) {
        while (out.at() < match.begin) out.keep();
        while (out.at() < match.end) out.drop();
        out.insert(content_);
      }
      out.keep_rest();
    });
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  std::string content_;
};

class Nmt : public Normalizer {
 public:
  void apply(AlignedText& text, AlignedText& spare) const override {
    rewrite(text, spare, [&](Rewriter& out) {
      while (out.more()) {
        const char32_t c = out.peek();
        if (is_removed(c))
          out.drop();
        else if (is_space(c))
          out.replace(' ');
        else
          out.keep();
      }
    });
  }

 private:
  static bool is_removed(char32_t c) {
    return (c >= 0x1 && c <= 0x8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f;
  }
  static bool is_space(char32_t c) {
    return c == 0x9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 || (c >= 0x200b && c <= 0x200f) || c == 0x2028 ||
           c == 0x2029 || c == 0x2581 || c == 0xfeff || c == 0xfffd;
  }
};

class ByteLevelNormalizer : public Normalizer {
 public:
  void apply(AlignedText& text, AlignedText& spare) const override {
    rewrite(text, spare, [&](Rewriter& out) { write_bytes(text.view(), out); });
  }
};

class PrecompiledNormalizer : public Normalizer {
 public:
  PrecompiledNormalizer(const std::string& map, const std::string& where) : map_(map, where) {}

  void apply(AlignedText& text, AlignedText& spare) const override {
    if (text.empty() || map_.kept(text.view(), 0) == text.size()) return;
    rewrite(text, spare, [&](Rewriter& out) { map_.write(text.view(), out); });
  }

 private:
  Precompiled map_;
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}
  void apply(AlignedText& text, AlignedText& spare) const override {
    for (const auto& part : parts_) part->apply(text, spare);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

}  // namespace

std::unique_ptr<Normalizer> normalizer_of(const Json& json, const std::string& where) {
  if (json.null()) return nullptr;
  const std::string type = json.at("type", where).text(where + ".type");
  if (type == "BertNormalizer") return std::make_unique<Bert>(json, where);
  if (type == "NFC") return std::make_unique<Form>(NormalForm::nfc);
  if (type == "NFD") return std::make_unique<Form>(NormalForm::nfd);
  if (type == "NFKC") return std::make_unique<Form>(NormalForm::nfkc);
  if (type == "NFKD") return std::make_unique<Form>(NormalForm::nfkd);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "Strip") return std::make_unique<Strip>(json, where);
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Prepend") return std::make_unique<Prepend>(json.at("prepend", where).text(where + ".prepend"));
  if (type == "Nmt") return std::make_unique<Nmt>();
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "Replace") {
    return std::make_unique<Replace>(pattern_of(json.at("pattern", where), where + ".pattern"),
                                     json.at("content", where).text(where + ".content"));
  }
  if (type == "Precompiled") {
    const std::string place = where + ".precompiled_charsmap";
    return std::make_unique<PrecompiledNormalizer>(json.at("precompiled_charsmap", where).text(place), place);
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Normalizer>> parts;
    for (const Json& part : json.at("normalizers", where).items(where + ".normalizers")) {
      const std::string place = where + ".normalizers[" + std::to_string(parts.size()) + "]";
      parts.push_back(normalizer_of(part, place));
      if (!parts.back()) throw TokenizerError(place + ": expected a normalizer");
    }
    return std::make_unique<NormalizerSequence>(std::move(parts));
  }
  throw TokenizerError(where + ": unknown normalizer '" + type + "'");
}

}  // namespace opgate::text

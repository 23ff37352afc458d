#include "normal_forms.h"

#include <algorithm>

#include "unicode.h"

namespace opgate::text {
namespace {

/// A character of the result, and how it changes the text (Rewriter::write).
struct Change {
  char32_t code;
  std::uint8_t combining_class;
  int change;
};

bool composes(NormalForm form) { return form == NormalForm::nfc || form == NormalForm::nfkc; }
bool is_compatible(NormalForm form) { return form == NormalForm::nfkd || form == NormalForm::nfkc; }

/// Composes characters that have been decomposed and ordered.
class Composer {
 public:
  Composer(const Unicode& unicode, Rewriter& out) : unicode_(unicode), out_(out) {}

  void put(Change next) {
    if (!has_starter_) {
      if (next.combining_class != 0) return out_.write(next.code, next.change);
      starter_ = next;
      has_starter_ = true;
      return;
    }
    const bool blocked = !marks_.empty() && marks_.back().combining_class >= next.combining_class;
    if (const char32_t joined = blocked ? 0 : unicode_.composition(starter_.code, next.code)) {
      starter_.code = joined;
      starter_.change += next.change - 1;
    } else if (next.combining_class == 0) {
      flush();
      starter_ = next;
      has_starter_ = true;
    } else {
      marks_.push_back(next);
    }
  }

  void flush() {
    if (has_starter_) out_.write(starter_.code, starter_.change);
    for (const Change& mark : marks_) out_.write(mark.code, mark.change);
    has_starter_ = false;
    marks_.clear();
  }

 private:
  const Unicode& unicode_;
  Rewriter& out_;
  Change starter_{};
  bool has_starter_ = false;
  std::vector<Change> marks_;
};

}  // namespace

bool is_normal(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return true;
  const std::uint32_t changes = form == NormalForm::nfd    ? kDecomposes
                                : form == NormalForm::nfkd ? kDecomposesCompatibly
                                : form == NormalForm::nfc  ? kComposes
                                                           : kComposesCompatibly;
  const Unicode& unicode = Unicode::tables();
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const Character c = character_at(at);
    if (unicode.has(c.code, changes)) return false;
    at += c.length;
  }
  return true;
}

void normalize(std::string_view text, NormalForm form, Rewriter& out) {
  const Unicode& unicode = Unicode::tables();
  Composer composer(unicode, out);
  std::vector<Change> pending;  // a starter and the marks behind it
  const auto release = [&] {
    std::stable_sort(pending.begin(), pending.end(),
                     [](const Change& a, const Change& b) { return a.combining_class < b.combining_class; });
    for (const Change& change : pending) {
      if (composes(form))
        composer.put(change);
      else
        out.write(change.code, change.change);
    }
    pending.clear();
  };
  const auto push = [&](char32_t c, bool first) {
    const std::uint8_t combining_class = unicode.combining_class(c);
    if (combining_class == 0) release();
    pending.push_back({c, combining_class, first ? 0 : 1});
  };
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const Character c = character_at(at);
    at += c.length;
    if (c.code - 0xac00 < 11172) {  // a syllable of Hangul
      const char32_t syllable = c.code - 0xac00, trail = syllable % 28;
      push(0x1100 + syllable / 588, true);
      push(0x1161 + syllable % 588 / 28, false);
      if (trail != 0) push(0x11a7 + trail, false);
      continue;
    }
    const std::span<const char32_t> parts =
        unicode.has(c.code, is_compatible(form) ? kDecomposesCompatibly : kDecomposes)
            ? unicode.decomposition(c.code, is_compatible(form))
            : std::span<const char32_t>();
    if (parts.empty()) push(c.code, true);
    for (std::size_t i = 0; i < parts.size(); ++i) push(parts[i], i == 0);
  }
  release();
  composer.flush();
}

}  // namespace opgate::text

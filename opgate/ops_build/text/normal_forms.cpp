#include "normal_forms.h"

#include <algorithm>
#include <utility>

namespace opgate::text {
namespace {

/// A character of the result, and how it changes the text (Rewriter::write).
struct Change {
  char32_t code;
  std::uint8_t combining_class;
  int change;
};

/// The flag of characters that a form may change.
std::uint32_t changes_in(NormalForm form) {
  switch (form) {
    case NormalForm::nfd: return kDecomposes;
    case NormalForm::nfkd: return kDecomposesCompatibly;
    case NormalForm::nfc: return kComposes;
    default: return kComposesCompatibly;
  }
}

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
  const Unicode& unicode = Unicode::tables();
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const Character c = character_at(at);
    if (unicode.has(c.code, changes_in(form))) return false;
    at += c.length;
  }
  return true;
}

void normalize(std::string_view text, NormalForm form, Rewriter& out) {
  const Unicode& unicode = Unicode::tables();
  Composer composer(unicode, out);
  std::vector<Change> pending;  // a starter and the marks behind it
  const auto release = [&] {
    if (pending.size() > 1) {
      std::stable_sort(pending.begin(), pending.end(),
                       [](const Change& a, const Change& b) { return a.combining_class < b.combining_class; });
    }
    for (const Change& change : pending) {
      if (composes(form))
        composer.put(change);
      else
        out.write(change.code, change.change);
    }
    pending.clear();
  };
  const std::uint32_t decomposes = is_compatible(form) ? kDecomposesCompatibly : kDecomposes;
  const auto push = [&](char32_t c, bool first) {
    const std::uint8_t combining_class = unicode.combining_class(c);
    if (combining_class == 0) release();
    pending.push_back({c, combining_class, first ? 0 : 1});
  };
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const Character c = character_at(at);
    at += c.length;
    if (!unicode.has(c.code, decomposes)) {
      push(c.code, true);
      continue;
    }
    bool first = true;
    for_each_part(unicode, c.code, is_compatible(form),
                  [&](char32_t part) { push(part, std::exchange(first, false)); });
  }
  release();
  composer.flush();
}

}  // namespace opgate::text

#include "pattern.h"

#include <oniguruma.h>

#include "scanners.h"

namespace opgate::text {
namespace {

/// How often a regular expression may go back in one match. Oniguruma's own limit, stated.
constexpr unsigned long kMostRetries = 10'000'000;

class Literal : public Pattern {
 public:
  explicit Literal(std::string text) : text_(std::move(text)) {}

  void find(std::string_view text, std::vector<Range>& matches) const override {
    for (std::size_t at = text.find(text_); at != std::string_view::npos; at = text.find(text_, at + text_.size())) {
      matches.push_back({static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at + text_.size())});
    }
  }

 private:
  std::string text_;
};

/// A regular expression that Oniguruma compiles, as `tokenizers` does.
class Oniguruma : public Pattern {
 public:
  Oniguruma(const std::string& text, const std::string& where) {
    static const int ready = [] {
      OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
      return onig_initialize(encodings, 1);
    }();
    OnigErrorInfo info;
    const auto* const begin = reinterpret_cast<const OnigUChar*>(text.data());
    const int code = ready != ONIG_NORMAL ? ready
                                          : onig_new(&regex_, begin, begin + text.size(), ONIG_OPTION_NONE,
                                                     ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
    if (code == ONIG_NORMAL) return;
    OnigUChar message[ONIG_MAX_ERROR_MESSAGE_LEN];
    const int length = onig_error_code_to_str(message, code, &info);
    throw TokenizerError(where + ": a regular expression that can't be compiled: " +
                         std::string(reinterpret_cast<char*>(message), static_cast<std::size_t>(length)));
  }
  ~Oniguruma() override { onig_free(regex_); }
  Oniguruma(const Oniguruma&) = delete;
  Oniguruma& operator=(const Oniguruma&) = delete;

  void find(std::string_view text, std::vector<Range>& matches) const override {
    struct Search {
      OnigMatchParam* parameters = onig_new_match_param();
      OnigRegion* region = onig_region_new();
      ~Search() {
        onig_free_match_param(parameters);
        onig_region_free(region, 1);
      }
    } search;
    onig_initialize_match_param(search.parameters);
    onig_set_retry_limit_in_match_of_match_param(search.parameters, kMostRetries);
    onig_set_retry_limit_in_search_of_match_param(search.parameters, kMostRetries);
    const auto* const begin = reinterpret_cast<const OnigUChar*>(text.data());
    const auto* const end = begin + text.size();
    std::size_t at = 0;
    bool matched = false;
    while (at <= text.size()) {
      const int found = onig_search_with_param(regex_, begin, end, begin + at, end, search.region, ONIG_OPTION_NONE,
                                               search.parameters);
      if (found == ONIG_MISMATCH) return;
      if (found < 0) throw PatternError("a regular expression of the tokenizer went back too often");
      const Range match{static_cast<std::uint32_t>(search.region->beg[0]),
                        static_cast<std::uint32_t>(search.region->end[0])};
      // An empty match directly behind a match doesn't count.
      if (match.begin == match.end && matched && matches.back().end == match.end) {
        at += at < text.size() ? character_at(text.data() + at).length : 1;
        continue;
      }
      matches.push_back(match);
      matched = true;
      at = match.end;
    }
  }

 private:
  OnigRegex regex_ = nullptr;
};

class Scanned : public Pattern {
 public:
  explicit Scanned(Scanner scanner) : scanner_(scanner) {}
  void find(std::string_view text, std::vector<Range>& matches) const override { scanner_(text, matches); }

 private:
  Scanner scanner_;
};

}  // namespace

std::unique_ptr<Pattern> regular_expression(const std::string& text, const std::string& where) {
  if (const Scanner scanner = scanner_of(text)) return std::make_unique<Scanned>(scanner);
  return std::make_unique<Oniguruma>(text, where);
}

std::unique_ptr<Pattern> pattern_of(const Json& json, const std::string& where) {
  if (const Json* text = json.find("String")) {
    const std::string& string = text->text(where + ".String");
    if (string.empty()) return std::make_unique<Oniguruma>(string, where);
    return std::make_unique<Literal>(string);
  }
  if (const Json* text = json.find("Regex")) return regular_expression(text->text(where + ".Regex"), where + ".Regex");
  throw TokenizerError(where + ": expected {\"String\": ...} or {\"Regex\": ...}");
}

}  // namespace opgate::text

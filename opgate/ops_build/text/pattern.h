// Where a pattern of a tokenizer.json, a string or a regular expression, matches a text.
#pragma once

#include <memory>
#include <vector>

#include "aligned_text.h"
#include "json.h"

namespace opgate::text {

/// A regular expression gave up on a text, because it went back too often.
struct PatternError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Pattern {
 public:
  virtual ~Pattern() = default;

  /// Appends the matches, from left to right. None overlaps another; one may be empty. Throws PatternError.
  virtual void find(std::string_view text, std::vector<Range>& matches) const = 0;
};

/// A pattern of the form {"String": ...} or {"Regex": ...}. Throws TokenizerError.
std::unique_ptr<Pattern> pattern_of(const Json& json, const std::string& where);

std::unique_ptr<Pattern> regular_expression(const std::string& text, const std::string& where);

}  // namespace opgate::text

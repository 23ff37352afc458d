// The regular expressions of well-known models as loops.
#pragma once

#include <string_view>
#include <vector>

#include "aligned_text.h"

namespace opgate::text {

/// Appends the matches of a regular expression in a text.
using Scanner = void (*)(std::string_view text, std::vector<Range>& matches);

/// The expression of GPT-2 and of byte-level pre-tokenizers.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// The scanner of an expression; nullptr if it has none.
Scanner scanner_of(std::string_view expression);

}  // namespace opgate::text

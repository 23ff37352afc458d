// The normal forms of Unicode.
#pragma once

#include "aligned_text.h"

namespace opgate::text {

enum class NormalForm { nfd, nfkd, nfc, nfkc };

/// Whether a text surely is in a form already.
bool is_normal(std::string_view text, NormalForm form);

/// Writes `text` in a form. Its origins are those of the crate unicode-normalization-alignments.
void normalize(std::string_view text, NormalForm form, Rewriter& out);

}  // namespace opgate::text

// The normalizers of a tokenizer.json.
#pragma once

#include <memory>

#include "aligned_text.h"
#include "json.h"

namespace opgate::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;

  /// Changes the text. `spare` is memory for a copy.
  virtual void apply(AlignedText& text, AlignedText& spare) const = 0;
};

/// nullptr for null. Throws TokenizerError.
std::unique_ptr<Normalizer> normalizer_of(const Json& json, const std::string& where);

}  // namespace opgate::text

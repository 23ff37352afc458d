// The decoders of a tokenizer.json. They turn the texts of tokens into the parts of a text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "json.h"

namespace opgate::text {

class Decoder {
 public:
  virtual ~Decoder() = default;

  /// Changes the parts. The text is what they are together. Throws PatternError.
  virtual void apply(std::vector<std::string>& parts) const = 0;
};

/// nullptr for null. Throws TokenizerError.
std::unique_ptr<Decoder> decoder_of(const Json& json, const std::string& where);

}  // namespace opgate::text

// The post-processors of a tokenizer.json. They add special tokens.
#pragma once

#include <memory>
#include <vector>

#include "json.h"

namespace opgate::text {

/// A token of an encoded text.
struct Entry {
  std::uint32_t id = 0, type = 0;
  std::uint32_t begin = 0, end = 0;                 ///< the characters of the text that it stands for
  bool special = false;                             ///< a special token that a post-processor has added
  std::int8_t sequence = -1;                        ///< 0: of the text, 1: of the pair, -1: of neither
  std::uint32_t space_before = 0, space_after = 0;  ///< how many spaces its text begins and ends with
};

/// The tokens of a text, of its pair, or of a part of a template.
using Part = std::vector<Entry>;

class PostProcessor {
 public:
  virtual ~PostProcessor() = default;

  /// How many special tokens it adds.
  virtual std::size_t added(bool pair) const = 0;
  virtual void apply(std::vector<Part>& parts, bool add_special_tokens) const = 0;
  /// Whether it reads `space_before` and `space_after`.
  virtual bool trims() const { return false; }
};

/// nullptr for null. Throws TokenizerError.
std::unique_ptr<PostProcessor> post_processor_of(const Json& json, const std::string& where);

}  // namespace opgate::text

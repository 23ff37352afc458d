// Tokens that are found in a text before it is cut into pieces.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "models.h"
#include "normalizers.h"
#include "pre_tokenizers.h"
#include "trie.h"

namespace opgate::text {

class AddedTokens {
 public:
  /// Throws TokenizerError.
  AddedTokens(const Json& json, const Model& model, const Normalizer* normalizer);

  struct Match {
    Range range;
    std::uint32_t id;
  };

  /// The tokens in a text, from left to right. If `normalized`, those that are looked for in normalized text.
  void find(std::string_view text, bool normalized, std::vector<Match>& matches) const;

  /// What stands for an added token in decoded text; nullptr if the id is none.
  const std::string* text(std::uint32_t id) const;
  bool is_special(std::string_view text) const { return special_.contains(std::string(text)); }

 private:
  struct Added {
    std::string content;
    std::string decoded;
    bool single_word, strip_left, strip_right;
  };

  std::unordered_map<std::uint32_t, Added> tokens_;
  std::unordered_set<std::string> special_;
  Trie tries_[2];  // [1]: looked for in normalized text
};

}  // namespace opgate::text

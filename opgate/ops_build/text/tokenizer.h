// What a tokenizer.json states, without an engine: texts to tokens, and back.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "added_tokens.h"
#include "decoders.h"
#include "models.h"
#include "normalizers.h"
#include "pattern.h"
#include "post_processors.h"
#include "pre_tokenizers.h"

namespace opgate::text {

/// How the rows of a batch become equally long.
struct Padding {
  bool left = false;
  std::uint32_t id = 0, type = 0;
  std::uint64_t length = 0;    ///< at least this long
  std::uint64_t multiple = 1;  ///< a multiple of this
};

class Tokenizer {
 public:
  /// Reads the text of a tokenizer.json. Throws TokenizerError.
  explicit Tokenizer(std::string_view text);

  struct Limits {
    std::uint64_t max_length;
    bool add_special_tokens;
  };

  /// The tokens of a text and its pair, cut to the length that the file or `limits` states, whichever is less. In place
  /// of bytes that are no UTF-8 stands U+FFFD. Throws ModelError and PatternError.
  void encode(std::string_view text, std::optional<std::string_view> pair, const Limits& limits, Part& entries) const;

  /// The text of tokens. An id that no token has is left out. Throws PatternError.
  std::string decode(std::span<const std::int64_t> ids, bool skip_special_tokens) const;

  /// Whether decode() uses an id: whether a token has it, which is not skipped.
  bool has_text(std::int64_t id, bool skip_special_tokens) const { return !!text_of(id, skip_special_tokens); }

  /// How many special tokens a text gets.
  std::size_t special_tokens(bool pair) const { return post_processor_ ? post_processor_->added(pair) : 0; }
  const Padding& padding() const { return padding_; }

 private:
  enum class Cut { longest_first, only_first, only_second };

  std::optional<std::string_view> text_of(std::int64_t id, bool skip_special_tokens) const;
  void read_truncation(const Json& json);
  void read_padding(const Json& json);
  void encode_one(std::string_view text, std::uint64_t most, Part& part) const;
  void encode_section(std::string_view section, std::uint32_t shift, std::uint64_t most, Part& part) const;
  void cut(std::vector<Part>& parts, std::uint64_t most) const;
  void cut(Part& part, std::uint64_t length) const;
  Entry added_entry(std::uint32_t id, std::string_view text, Range origin) const;

  std::unique_ptr<Normalizer> normalizer_;
  PreTokenizers pre_tokenizers_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<AddedTokens> added_tokens_;
  std::unique_ptr<PostProcessor> post_processor_;
  std::unique_ptr<Decoder> decoder_;
  std::optional<std::uint64_t> max_length_;
  Cut cut_ = Cut::longest_first;
  bool cut_left_ = false;
  Padding padding_;
};

}  // namespace opgate::text

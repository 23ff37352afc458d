// The models of a tokenizer.json. A model cuts a piece of text into tokens.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "aligned_text.h"
#include "json.h"
#include "vocabulary.h"

namespace opgate::text {

/// A token of a piece.
struct Token {
  std::uint32_t id;
  Range range;  ///< bytes of the piece. It may reach beyond the piece if the model says so.
};

/// The model has no token for a text.
struct ModelError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Model {
 public:
  virtual ~Model() = default;

  /// Appends the tokens of a piece, which is not empty. Throws ModelError.
  virtual void tokenize(std::string_view piece, std::vector<Token>& tokens) const = 0;

  /// The text of a token; `piece` is the text that it stands for.
  virtual std::string_view text_of(std::uint32_t id, std::string_view piece) const {
    return vocabulary_.text(id).value_or(piece);
  }

  const Vocabulary& vocabulary() const { return vocabulary_; }

  /// The id that the first token behind the vocabulary gets.
  virtual std::uint32_t next_id() const { return static_cast<std::uint32_t>(vocabulary_.size()); }

 protected:
  Vocabulary vocabulary_;
};

/// `bytes` says that the pieces are bytes, and the tokens of the model are in the alphabet of bytes
/// (bytes_alphabet.h). Throws TokenizerError.
std::unique_ptr<Model> model_of(const Json& json, bool bytes);

// By type.
std::unique_ptr<Model> bpe_of(const Json& json, bool bytes);
std::unique_ptr<Model> unigram_of(const Json& json);
std::unique_ptr<Model> word_piece_of(const Json& json);
std::unique_ptr<Model> word_level_of(const Json& json);

/// {"token": id, ...}
Vocabulary vocabulary_of(const Json& json);

}  // namespace opgate::text

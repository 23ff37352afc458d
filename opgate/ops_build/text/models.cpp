#include "models.h"

#include "trie.h"

namespace opgate::text {
namespace {

class WordPiece : public Model {
 public:
  explicit WordPiece(const Json& json)
      : unknown_(json.at("unk_token", "model").text("model.unk_token")),
        most_characters_(json.at("max_input_chars_per_word", "model").whole("model.max_input_chars_per_word")) {
    vocabulary_ = vocabulary_of(json.at("vocab", "model"));
    unknown_id_ = vocabulary_.find(unknown_);
    const std::string& prefix = json.at("continuing_subword_prefix", "model").text("model.continuing_subword_prefix");
    std::vector<Trie::Entry> first, next;
    vocabulary_.for_each([&](std::string_view token, std::uint32_t id) {
      first.push_back({token, static_cast<std::int32_t>(id)});
      if (token.starts_with(prefix)) next.push_back({token.substr(prefix.size()), static_cast<std::int32_t>(id)});
    });
    first_ = Trie(std::move(first));
    next_ = Trie(std::move(next));
  }

  void tokenize(std::string_view piece, std::vector<Token>& tokens) const override {
    const std::size_t before = tokens.size();
    std::uint32_t at = 0;
    if (piece.size() <= most_characters_ || characters(piece) <= most_characters_) {
      while (at < piece.size()) {
        const Trie::Match match = (at == 0 ? first_ : next_).longest_prefix(piece.substr(at));
        if (match.length == 0) break;
        tokens.push_back({static_cast<std::uint32_t>(match.value), {at, at + match.length}});
        at += match.length;
      }
    }
    if (at == piece.size()) return;
    if (!unknown_id_) throw ModelError("WordPiece: unk_token '" + unknown_ + "' is not in the vocabulary");
    tokens.resize(before);
    tokens.push_back({*unknown_id_, {0, static_cast<std::uint32_t>(piece.size())}});
  }

 private:
  static std::size_t characters(std::string_view text) {
    std::size_t count = 0;
    for (const char byte : text) count += !continues(byte);
    return count;
  }

  Trie first_, next_;
  std::string unknown_;
  std::uint64_t most_characters_;
  std::optional<std::uint32_t> unknown_id_;
};

class WordLevel : public Model {
 public:
  explicit WordLevel(const Json& json) : unknown_(json.at("unk_token", "model").text("model.unk_token")) {
    vocabulary_ = vocabulary_of(json.at("vocab", "model"));
    unknown_id_ = vocabulary_.find(unknown_);
  }

  void tokenize(std::string_view piece, std::vector<Token>& tokens) const override {
    const auto known = vocabulary_.find(piece);
    if (!known && !unknown_id_) throw ModelError("WordLevel: unk_token '" + unknown_ + "' is not in the vocabulary");
    tokens.push_back({known ? *known : *unknown_id_, {0, static_cast<std::uint32_t>(piece.size())}});
  }

 private:
  std::string unknown_;
  std::optional<std::uint32_t> unknown_id_;
};

/// The type of a model. Old files don't state it.
std::string type_of(const Json& json) {
  if (const Json* type = json.find("type")) return type->text("model.type");
  if (json.find("merges")) return "BPE";
  if (json.find("max_input_chars_per_word")) return "WordPiece";
  return std::holds_alternative<Json::Items>(json.at("vocab", "model").value) ? "Unigram" : "WordLevel";
}

}  // namespace

Vocabulary vocabulary_of(const Json& json) {
  const Json::Members& members = json.members("model.vocab");
  Vocabulary vocabulary(members.size());
  for (const auto& [token, id] : members) vocabulary.set(token, id.id("model.vocab['" + token + "']"));
  return vocabulary;
}

std::unique_ptr<Model> word_piece_of(const Json& json) { return std::make_unique<WordPiece>(json); }
std::unique_ptr<Model> word_level_of(const Json& json) { return std::make_unique<WordLevel>(json); }

std::unique_ptr<Model> model_of(const Json& json, bool bytes) {
  const std::string type = type_of(json);
  if (type == "BPE") return bpe_of(json, bytes);
  if (type == "Unigram") return unigram_of(json);
  if (type == "WordPiece") return word_piece_of(json);
  if (type == "WordLevel") return word_level_of(json);
  throw TokenizerError("model: unknown model '" + type + "'");
}

}  // namespace opgate::text

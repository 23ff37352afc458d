#include <atomic>
#include <cstring>
#include <limits>
#include <span>

#include "models.h"
#include "trie.h"

namespace opgate::text {
namespace {

/// A piece and the tokens that a model has found in it.
struct KnownPiece {
  static constexpr std::size_t kLongest = 54, kMost = 11;

  std::uint64_t serial = 0;  ///< of the model; 0: there is no piece
  std::uint8_t size = 0, count = 0;
  std::uint8_t ends[kMost];  ///< of the tokens; one begins where the one before ends
  char bytes[kLongest];
  std::uint32_t ids[kMost];

  std::string_view piece() const { return {bytes, size}; }
  void append_to(std::vector<Token>& tokens) const {
    std::uint32_t begin = 0;
    for (std::size_t i = 0; i < count; ++i) {
      tokens.push_back({ids[i], {begin, ends[i]}});
      begin = ends[i];
    }
  }
  /// Keeps the tokens of a piece, unless they are too many or several bytes of one character.
  void set(std::uint64_t model, std::string_view piece, std::span<const Token> tokens) {
    if (tokens.size() > kMost) return;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i].range.begin != (i == 0 ? 0 : tokens[i - 1].range.end)) return;
    }
    serial = model;
    size = static_cast<std::uint8_t>(piece.size());
    count = static_cast<std::uint8_t>(tokens.size());
    std::memcpy(bytes, piece.data(), piece.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      ids[i] = tokens[i].id;
      ends[i] = static_cast<std::uint8_t>(tokens[i].range.end);
    }
  }
};

/// The pieces that this thread has seen last, each at the place of its hash: 2 megabytes.
constexpr std::size_t kKnownPieces = 16384;
std::vector<KnownPiece>& known_pieces() {
  thread_local std::vector<KnownPiece> pieces(kKnownPieces);
  return pieces;
}

class Unigram : public Model {
 public:
  explicit Unigram(const Json& json) {
    const Json::Items& items = json.at("vocab", "model").items("model.vocab");
    vocabulary_ = Vocabulary(items.size());
    double least = std::numeric_limits<double>::infinity();
    std::vector<Trie::Entry> entries;
    for (const Json& item : items) {
      const std::string where = "model.vocab[" + std::to_string(scores_.size()) + "]";
      const Json::Items& pair = item.items(where);
      if (pair.size() != 2) throw TokenizerError(where + ": expected a token and its score");
      const auto id = static_cast<std::uint32_t>(scores_.size());
      vocabulary_.set(pair[0].text(where), id);
      scores_.push_back(pair[1].number(where));
      least = std::min(least, scores_.back());
      entries.push_back({pair[0].text(where), static_cast<std::int32_t>(id)});
    }
    trie_ = Trie(std::move(entries));
    unknown_score_ = least - 10;
    if (const Json* unknown = json.find("unk_id"); unknown && !unknown->null()) {
      unknown_ = unknown->id("model.unk_id");
      if (*unknown_ >= scores_.size()) throw TokenizerError("model.unk_id: expected the index of a token");
    }
    if (json.boolean_or("byte_fallback", false, "model")) {
      static constexpr char kHex[] = "0123456789ABCDEF";
      for (unsigned byte = 0; byte < 256; ++byte) {
        const char token[] = {'<', '0', 'x', kHex[byte / 16], kHex[byte % 16], '>'};
        byte_tokens_.push_back(vocabulary_.find(std::string_view(token, 6)));
      }
    }
  }

  void tokenize(std::string_view piece, std::vector<Token>& tokens) const override {
    if (piece.size() > KnownPiece::kLongest) return find_tokens(piece, tokens);
    KnownPiece& known = known_pieces()[(hash_of(piece) ^ serial_) % kKnownPieces];
    if (known.serial == serial_ && known.piece() == piece) return known.append_to(tokens);
    const std::size_t before = tokens.size();
    find_tokens(piece, tokens);
    known.set(serial_, piece, std::span(tokens).subspan(before));
  }

  std::string_view text_of(std::uint32_t, std::string_view piece) const override { return piece; }
  /// A token may stand in the list twice.
  std::uint32_t next_id() const override { return static_cast<std::uint32_t>(scores_.size()); }

 private:
  /// The best way to a place in the text.
  struct Node {
    double score = 0;
    std::uint32_t begin = kNowhere;  ///< where its last token begins
    std::uint32_t id = 0;
  };
  static constexpr std::uint32_t kNowhere = 0xffffffff;

  void find_tokens(std::string_view piece, std::vector<Token>& tokens) const {
    thread_local std::vector<Node> nodes;
    thread_local std::vector<Token> path;
    find_best_path(piece, nodes);
    path.clear();
    for (auto end = static_cast<std::uint32_t>(piece.size()); end > 0; end = nodes[end].begin) {
      const Node& node = nodes[end];
      // Unknown characters in a row are one token.
      if (node.id == unknown_ && !path.empty() && path.back().id == unknown_) {
        path.back().range.begin = node.begin;
      } else {
        path.push_back({node.id, {node.begin, end}});
      }
    }
    for (auto token = path.rbegin(); token != path.rend(); ++token) {
      if (token->id == unknown_)
        push_unknown(piece, token->range, tokens);
      else
        tokens.push_back(*token);
    }
  }

  void find_best_path(std::string_view piece, std::vector<Node>& nodes) const {
    nodes.assign(piece.size() + 1, Node());
    const auto offer = [&](std::uint32_t begin, std::uint32_t end, std::uint32_t id, double score) {
      Node& node = nodes[end];
      if (node.begin == kNowhere || score > node.score) node = {score, begin, id};
    };
    for (std::uint32_t at = 0; at < piece.size();) {
      const double score = nodes[at].score;
      const std::uint32_t length = character_at(piece.data() + at).length;
      bool single = false;
      trie_.for_each_prefix(piece.substr(at), [&](std::uint32_t size, std::int32_t id) {
        offer(at, at + size, static_cast<std::uint32_t>(id), scores_[static_cast<std::size_t>(id)] + score);
        single = single || size == length;
      });
      if (!single) {
        if (!unknown_) throw ModelError("Unigram: a character is not in the vocabulary, and there is no unk_id");
        offer(at, at + length, *unknown_, unknown_score_ + score);
      }
      at += length;
    }
  }

  void push_unknown(std::string_view piece, Range range, std::vector<Token>& tokens) const {
    const std::string_view text = piece.substr(range.begin, range.end - range.begin);
    if (const auto known = vocabulary_.find(text)) {
      tokens.push_back({*known, range});
      return;
    }
    bool all = !byte_tokens_.empty();
    for (const char byte : text) all = all && byte_tokens_[static_cast<unsigned char>(byte)];
    if (!all) {
      tokens.push_back({*unknown_, range});
      return;
    }
    for (const char byte : text) tokens.push_back({*byte_tokens_[static_cast<unsigned char>(byte)], range});
  }

  static inline std::atomic<std::uint64_t> models_ = 0;
  const std::uint64_t serial_ = ++models_;  // of this model among all
  Trie trie_;
  std::vector<double> scores_;  // by id
  double unknown_score_ = 0;
  std::optional<std::uint32_t> unknown_;
  std::vector<std::optional<std::uint32_t>> byte_tokens_;  // by byte; empty without byte_fallback
};

}  // namespace

std::unique_ptr<Model> unigram_of(const Json& json) { return std::make_unique<Unigram>(json); }

}  // namespace opgate::text

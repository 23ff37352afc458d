#include <atomic>
#include <limits>

#include "models.h"
#include "trie.h"

namespace opgate::text {
namespace {

class Unigram : public Model {
 public:
  explicit Unigram(const Json& json) {
    const Json::Items& items = json.at("vocab", "model").items("model.vocab");
    vocabulary_ = Vocabulary(items.size());
    double least = std::numeric_limits<double>::infinity();
    for (const Json& item : items) {
      const std::string where = "model.vocab[" + std::to_string(scores_.size()) + "]";
      const Json::Items& pair = item.items(where);
      if (pair.size() != 2) throw TokenizerError(where + ": expected a token and its score");
      const auto id = static_cast<std::uint32_t>(scores_.size());
      vocabulary_.set(pair[0].text(where), id);
      scores_.push_back(pair[1].number(where));
      least = std::min(least, scores_.back());
      if (!pair[0].text(where).empty()) trie_.set(pair[0].text(where), static_cast<std::int32_t>(id));
    }
    unknown_score_ = least - 10;
    stays_whole_ = std::make_unique<std::atomic<bool>[]>(vocabulary_.ids());
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
    const auto whole = vocabulary_.find(piece);
    if (whole && stays_whole_[*whole].load(std::memory_order_relaxed)) {
      tokens.push_back({*whole, {0, static_cast<std::uint32_t>(piece.size())}});
      return;
    }
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
    if (whole && path.size() == 1 && path[0].id == *whole && whole != unknown_) {
      stays_whole_[*whole].store(true, std::memory_order_relaxed);
    }
    for (auto token = path.rbegin(); token != path.rend(); ++token) {
      if (token->id == unknown_)
        push_unknown(piece, token->range, tokens);
      else
        tokens.push_back(*token);
    }
  }

  std::string_view text_of(std::uint32_t, std::string_view piece) const override { return piece; }

 private:
  /// The best way to a place in the text.
  struct Node {
    double score = 0;
    std::uint32_t begin = kNowhere;  ///< where its last token begins
    std::uint32_t id = 0;
  };
  static constexpr std::uint32_t kNowhere = 0xffffffff;

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

  Trie trie_;
  std::vector<double> scores_;  // by id
  double unknown_score_ = 0;
  std::optional<std::uint32_t> unknown_;
  std::unique_ptr<std::atomic<bool>[]> stays_whole_;  // by id: a piece that is this token is known to be cut no further
  std::vector<std::optional<std::uint32_t>> byte_tokens_;  // by byte; empty without byte_fallback
};

}  // namespace

std::unique_ptr<Model> unigram_of(const Json& json) { return std::make_unique<Unigram>(json); }

}  // namespace opgate::text

#include <algorithm>
#include <atomic>
#include <limits>
#include <queue>
#include <span>
#include <utility>

#include "bytes_alphabet.h"
#include "models.h"

namespace opgate::text {
namespace {

/// Pairs of tokens that merge.
class Merges {
 public:
  struct Merge {
    std::uint32_t rank = kNever, into = 0;
  };
  static constexpr std::uint32_t kNever = 0xffffffff;

  explicit Merges(std::size_t count) : slots_(std::size_t{16}) {
    while (slots_.size() < 2 * count + 2) slots_.resize(2 * slots_.size());
  }
  void set(std::uint32_t a, std::uint32_t b, Merge merge) { slots_[place(key_of(a, b))] = {key_of(a, b), merge}; }
  Merge find(std::uint32_t a, std::uint32_t b) const { return slots_[place(key_of(a, b))].merge; }

 private:
  struct Slot {
    std::uint64_t key = std::numeric_limits<std::uint64_t>::max();
    Merge merge;
  };
  static std::uint64_t key_of(std::uint32_t a, std::uint32_t b) { return std::uint64_t{a} << 32 | b; }
  std::size_t place(std::uint64_t key) const {
    std::size_t at = mixed(key, 0x9e3779b97f4a7c15u) & (slots_.size() - 1);
    while (slots_[at].key != key && slots_[at].key != std::numeric_limits<std::uint64_t>::max()) {
      at = (at + 1) & (slots_.size() - 1);
    }
    return at;
  }

  std::vector<Slot> slots_;
};

class Bpe : public Model {
 public:
  Bpe(const Json& json, bool bytes) : bytes_(bytes) {
    if (const Json* dropout = json.find("dropout");
        dropout && !dropout->null() && dropout->number("model.dropout") != 0) {
      throw TokenizerError("model.dropout: expected null, because it makes tokens random");
    }
    unknown_ = json.find("unk_token") && !json.find("unk_token")->null()
                   ? std::optional(json.find("unk_token")->text("model.unk_token"))
                   : std::nullopt;
    prefix_ = json.text_or("continuing_subword_prefix", "", "model");
    suffix_ = json.text_or("end_of_word_suffix", "", "model");
    fuse_unknown_ = json.boolean_or("fuse_unk", false, "model");
    ignore_merges_ = json.boolean_or("ignore_merges", false, "model");
    vocabulary_ = vocabulary_of(json.at("vocab", "model"));
    if (unknown_) unknown_id_ = vocabulary_.find(*unknown_);
    if (json.boolean_or("byte_fallback", false, "model")) find_byte_tokens();
    read_merges(json.at("merges", "model").items("model.merges"));
    find_first_symbols();
    find_words();
  }

  void tokenize(std::string_view piece, std::vector<Token>& tokens) const override {
    const auto whole = words_.find(piece);
    const auto end = static_cast<std::uint32_t>(piece.size());
    if (whole && (ignore_merges_ || merges_whole_[*whole].load(std::memory_order_relaxed) == Whole::yes)) {
      tokens.push_back({*whole, {0, end}});
      return;
    }
    thread_local std::vector<Symbol> symbols;
    const bool known = find_symbols(piece, symbols);
    if (symbols.size() <= kFew) {
      merge_run(symbols, 0, whole, tokens);
      return;
    }
    // A long text is cut where no merges join the symbols. A part that is a token and merges to it needs no merging.
    const bool words = known && prefix_.empty() && suffix_.empty();
    std::uint32_t at = 0;
    for (std::size_t first = 0, last = 0; first < symbols.size(); first = last) {
      std::uint32_t length = symbols[last++].length;
      while (last < symbols.size() && may_join(symbols[last - 1].id, symbols[last].id))
        length += symbols[last++].length;
      const auto word = words ? words_.find(piece.substr(at, length)) : std::nullopt;
      if (word && merges_whole_[*word].load(std::memory_order_relaxed) == Whole::yes)
        tokens.push_back({*word, {at, at + length}});
      else
        merge_run(std::span(symbols).subspan(first, last - first), at, word, tokens);
      at += length;
    }
  }

 private:
  enum class Whole : std::uint8_t { unknown, yes, no };
  struct Symbol {
    std::uint32_t id, length;
  };
  struct Ends {
    std::uint32_t first, last;
  };
  static constexpr std::size_t kFew = 64;
  static constexpr std::uint32_t kNoSymbol = 0xffffffff;

  void read_merges(const Json::Items& items) {
    merges_ = Merges(items.size());
    std::vector<Parts> parts;
    std::uint32_t rank = 0;
    for (const Json& item : items) {
      const std::string where = "model.merges[" + std::to_string(rank) + "]";
      std::string a, b;
      if (const auto* text = std::get_if<std::string>(&item.value)) {
        if (text->starts_with("#version")) continue;
        const std::size_t space = text->find(' ');
        if (space == std::string::npos || text->find(' ', space + 1) != std::string::npos) {
          throw TokenizerError(where + ": expected two tokens with a space between them, got '" + *text + "'");
        }
        a = text->substr(0, space);
        b = text->substr(space + 1);
      } else {
        const Json::Items& pair = item.items(where);
        if (pair.size() != 2) throw TokenizerError(where + ": expected two tokens");
        a = pair[0].text(where);
        b = pair[1].text(where);
      }
      const auto id = [&](const std::string& token) {
        const auto found = vocabulary_.find(token);
        if (!found) throw TokenizerError(where + ": the token '" + token + "' is not in the vocabulary");
        return *found;
      };
      const std::uint32_t first = id(a), second = id(b);
      merges_.set(first, second, {rank++, id(a + (b.size() < prefix_.size() ? "" : b.substr(prefix_.size())))});
      parts.push_back({first, second, merges_.find(first, second).into});
    }
    find_joins(parts);
  }

  struct Parts {
    std::uint32_t first, second, into;
  };

  /// Finds the pairs of symbols between which a merge, or one of what has been merged, may be.
  void find_joins(std::vector<Parts> merges) {
    joins_ = Merges(merges.size());
    // The symbols at the ends of each token. They are known only if each way to merge a token begins and ends with the
    // same symbols, and if no symbol is merged. A token is longer than its parts, so these come first.
    const auto length = [&](const Parts& merge) { return vocabulary_.text(merge.into)->size(); };
    std::ranges::stable_sort(merges, {}, length);
    std::vector<Ends> ends(vocabulary_.ids());
    for (std::uint32_t id = 0; id < ends.size(); ++id) ends[id] = {id, id};
    std::vector<bool> fixed(ends.size());
    for (const std::uint32_t id : byte_tokens_) {
      if (id != kNoSymbol) fixed[id] = true;
    }
    if (unknown_id_) fixed[*unknown_id_] = true;
    for (const Parts& merge : merges) {
      const Ends joined{ends[merge.first].first, ends[merge.second].last};
      Ends& into = ends[merge.into];
      if (into.first == merge.into) into = joined;
      all_join_ =
          all_join_ || !prefix_.empty() || fixed[merge.into] || into.first != joined.first || into.last != joined.last;
      joins_.set(ends[merge.first].last, ends[merge.second].first, {0, 0});
    }
  }
  bool may_join(std::uint32_t a, std::uint32_t b) const {
    return all_join_ || joins_.find(a, b).rank != Merges::kNever;
  }

  void find_byte_tokens() {
    static constexpr char kHex[] = "0123456789ABCDEF";
    for (unsigned byte = 0; byte < 256; ++byte) {
      const char token[] = {'<', '0', 'x', kHex[byte / 16], kHex[byte % 16], '>'};
      byte_tokens_.push_back(vocabulary_.find(std::string_view(token, 6)).value_or(kNoSymbol));
    }
  }

  /// The token of a character, or of the character of a byte, at its place in the word.
  std::uint32_t symbol(std::string_view character, bool first, bool last) const {
    if (prefix_.empty() && suffix_.empty()) return vocabulary_.find(character).value_or(kNoSymbol);
    std::string token = first ? "" : prefix_;
    token += character;
    if (last) token += suffix_;
    return vocabulary_.find(token).value_or(kNoSymbol);
  }

  static std::string character_of_byte(char byte) {
    std::string character;
    append_character(character, kBytesAlphabet[static_cast<unsigned char>(byte)]);
    return character;
  }

  /// Looks up the tokens of single bytes, or of ASCII characters.
  void find_first_symbols() {
    for (int byte = 0; byte < (bytes_ ? 256 : 128); ++byte) {
      const auto c = static_cast<char>(byte);
      const std::string character = bytes_ ? character_of_byte(c) : std::string(1, c);
      for (int place = 0; place < 4; ++place) {
        single_[place][byte] = symbol(character, (place & 1) != 0, (place & 2) != 0);
      }
    }
  }

  /// Collects the pieces that are a whole token, in bytes where the pieces are bytes.
  void find_words() {
    words_ = Vocabulary(vocabulary_.size());
    vocabulary_.for_each([&](std::string_view token, std::uint32_t id) {
      const std::string_view suffix = ignore_merges_ ? std::string_view() : suffix_;
      if (!token.ends_with(suffix)) return;
      token.remove_suffix(suffix.size());
      if (!bytes_) return words_.set(token, id);
      std::string word;
      for (std::size_t i = 0; i < token.size();) {
        const Character c = character_at(token.data() + i);
        const int byte = byte_of(c.code);
        if (byte < 0) return;
        word += static_cast<char>(byte);
        i += c.length;
      }
      words_.set(word, id);
    });
    merges_whole_ = std::make_unique<std::atomic<Whole>[]>(vocabulary_.ids());
  }

  /// Finds the symbols that a word begins with, one for each character that has a token. Returns whether each has.
  bool find_symbols(std::string_view word, std::vector<Symbol>& symbols) const {
    symbols.clear();
    bool known = true;
    std::optional<Symbol> unknown;  // not yet among the symbols, because the next one may be fused with it
    for (std::size_t at = 0; at < word.size();) {
      const std::uint32_t length = bytes_ ? 1 : character_at(word.data() + at).length;
      const bool first = at == 0, last = at + length == word.size();
      const std::string_view character = word.substr(at, length);
      const std::uint32_t id = length == 1 ? single_[first + 2 * last][static_cast<unsigned char>(word[at])]
                                           : symbol(character, first, last);
      at += length;
      if (id != kNoSymbol) {
        if (unknown) symbols.push_back(*std::exchange(unknown, std::nullopt));
        symbols.push_back({id, length});
      } else {
        known = false;
        if (!push_bytes(character, first, last, symbols)) add_unknown(length, unknown, symbols);
      }
    }
    if (unknown) symbols.push_back(*unknown);
    return known;
  }

  /// Adds the tokens of the bytes of a character, if each has one.
  bool push_bytes(std::string_view character, bool first, bool last, std::vector<Symbol>& symbols) const {
    if (byte_tokens_.empty()) return false;
    std::string text = first ? "" : prefix_;
    text += bytes_ ? character_of_byte(character[0]) : std::string(character);
    if (last) text += suffix_;
    const auto id_of = [&](char byte) { return byte_tokens_[static_cast<unsigned char>(byte)]; };
    if (std::ranges::any_of(text, [&](char byte) { return id_of(byte) == kNoSymbol; })) return false;
    for (const char byte : text) symbols.push_back({id_of(byte), 1});
    return true;
  }

  void add_unknown(std::uint32_t length, std::optional<Symbol>& unknown, std::vector<Symbol>& symbols) const {
    if (!unknown_) return;
    if (!unknown_id_) throw ModelError("BPE: unk_token '" + *unknown_ + "' is not in the vocabulary");
    if (unknown && fuse_unknown_) {
      unknown->length += length;
      return;
    }
    if (unknown) symbols.push_back(*unknown);
    unknown = {*unknown_id_, length};
  }

  /// Merges symbols, the pair of the lowest rank first and among equal ones the leftmost, and appends what is left.
  /// `whole` is the token that all are, if there is one.
  void merge_run(std::span<Symbol> symbols, std::uint32_t at, std::optional<std::uint32_t> whole,
                 std::vector<Token>& tokens) const {
    const std::span<Symbol> merged = symbols.size() <= kFew ? merge_few(symbols) : merge_many(symbols);
    for (const Symbol& symbol : merged) {
      tokens.push_back({symbol.id, {at, at + symbol.length}});
      at += symbol.length;
    }
    if (whole) {
      const bool alone = merged.size() == 1 && merged[0].id == *whole;
      merges_whole_[*whole].store(alone ? Whole::yes : Whole::no, std::memory_order_relaxed);
    }
  }

  /// Looks at all pairs for each merge.
  std::span<Symbol> merge_few(std::span<Symbol> symbols) const {
    Merges::Merge pairs[kFew];
    std::size_t count = symbols.size();
    if (count < 2) return symbols;
    for (std::size_t i = 0; i + 1 < count; ++i) pairs[i] = merges_.find(symbols[i].id, symbols[i + 1].id);
    while (count > 1) {
      std::size_t best = 0;
      for (std::size_t i = 1; i + 1 < count; ++i) {
        if (pairs[i].rank < pairs[best].rank) best = i;
      }
      if (pairs[best].rank == Merges::kNever) break;
      symbols[best] = {pairs[best].into, symbols[best].length + symbols[best + 1].length};
      --count;
      for (std::size_t i = best + 1; i < count; ++i) {
        symbols[i] = symbols[i + 1];
        pairs[i] = pairs[i + 1];
      }
      if (best > 0) pairs[best - 1] = merges_.find(symbols[best - 1].id, symbols[best].id);
      if (best + 1 < count) pairs[best] = merges_.find(symbols[best].id, symbols[best + 1].id);
    }
    return symbols.first(count);
  }

  /// Keeps the pairs in a heap, so that the time is that of sorting.
  std::span<Symbol> merge_many(std::span<Symbol> symbols) const {
    struct Pair {
      std::uint32_t rank, at, into;
      bool operator>(const Pair& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
    };
    struct Link {
      std::uint32_t before, next;
    };
    constexpr std::uint32_t kEnd = 0xffffffff;
    const auto count = static_cast<std::uint32_t>(symbols.size());
    std::vector<Link> links(count);
    std::vector<Pair> found;
    for (std::uint32_t i = 0; i < count; ++i) {
      links[i] = {i == 0 ? kEnd : i - 1, i + 1 == count ? kEnd : i + 1};
      if (i + 1 == count) break;
      const Merges::Merge merge = merges_.find(symbols[i].id, symbols[i + 1].id);
      if (merge.rank != Merges::kNever) found.push_back({merge.rank, i, merge.into});
    }
    std::priority_queue<Pair, std::vector<Pair>, std::greater<>> queue(std::greater<>(), std::move(found));
    const auto push = [&](std::uint32_t at) {
      const Merges::Merge merge = merges_.find(symbols[at].id, symbols[links[at].next].id);
      if (merge.rank != Merges::kNever) queue.push({merge.rank, at, merge.into});
    };
    while (!queue.empty()) {
      const Pair top = queue.top();
      queue.pop();
      const std::uint32_t next = links[top.at].next;
      if (symbols[top.at].length == 0 || next == kEnd) continue;
      // The pair may have changed since.
      const Merges::Merge merge = merges_.find(symbols[top.at].id, symbols[next].id);
      if (merge.rank == Merges::kNever || merge.into != top.into) continue;
      symbols[top.at] = {top.into, symbols[top.at].length + symbols[next].length};
      symbols[next].length = 0;
      links[top.at].next = links[next].next;
      if (links[next].next != kEnd) links[links[next].next].before = top.at;
      if (links[top.at].before != kEnd) push(links[top.at].before);
      if (links[top.at].next != kEnd) push(top.at);
    }
    const auto left = std::ranges::remove(symbols, 0u, &Symbol::length);
    return symbols.first(symbols.size() - left.size());
  }

  bool bytes_, fuse_unknown_, ignore_merges_;
  std::optional<std::string> unknown_;
  std::optional<std::uint32_t> unknown_id_;
  std::string prefix_, suffix_;
  Merges merges_{0}, joins_{0};
  bool all_join_ = false;                   // it isn't known what joins
  std::vector<std::uint32_t> byte_tokens_;  // by byte; empty without byte_fallback
  std::uint32_t single_[4][256];            // by byte; [1] at the begin of a word, [2] at its end, [3] at both
  Vocabulary words_;
  std::unique_ptr<std::atomic<Whole>[]> merges_whole_;  // by id: whether the word that it is merges to it
};

}  // namespace

std::unique_ptr<Model> bpe_of(const Json& json, bool bytes) { return std::make_unique<Bpe>(json, bytes); }

}  // namespace opgate::text

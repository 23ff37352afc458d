// The pre-tokenizers of a tokenizer.json. They cut a text into pieces, and may change it.
#pragma once

#include <memory>

#include "aligned_text.h"
#include "json.h"

namespace opgate::text {

inline constexpr std::int64_t kNoToken = -1;

/// A piece of a text.
struct Piece {
  Range range;
  std::uint32_t shift;            ///< where it begins in the original text
  std::int64_t token = kNoToken;  ///< the id of the added token that it is
};

/// A text and its pieces, in its order, and memory for copies.
struct Pieces {
  AlignedText text, spare_text;
  std::vector<Piece> pieces, spare_pieces;
  std::vector<Range> matches;

  /// A piece with the bytes of a range, if it has any.
  void cut(Range range) {
    if (range.begin < range.end) spare_pieces.push_back({range, text.origin(range.begin).begin});
  }

  /// Replaces each piece that is no token by those that cut_one(range) cuts.
  template <typename Cut>
  void cut_each(Cut cut_one) {
    spare_pieces.clear();
    for (const Piece& piece : pieces) {
      if (piece.token != kNoToken)
        spare_pieces.push_back(piece);
      else
        cut_one(piece.range);
    }
    pieces.swap(spare_pieces);
  }

  /// Replaces the text of each piece that is no token by what write_one(piece, writer) writes.
  template <typename Write>
  void rewrite_each(Write write_one) {
    spare_text.assign({}, 0);
    for (Piece& piece : pieces) {
      const std::uint32_t begin = spare_text.size();
      Rewriter out(text, piece.range, piece.shift, spare_text);
      if (piece.token != kNoToken)
        out.keep_rest();
      else
        write_one(piece, out);
      piece.range = {begin, spare_text.size()};
    }
    std::swap(text, spare_text);
  }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Pieces& pieces) const = 0;
};

struct PreTokenizers {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  /// Whether a last step writes the bytes in their alphabet (bytes_alphabet.h). It is left to the model.
  bool bytes = false;
};

/// Throws TokenizerError.
PreTokenizers pre_tokenizers_of(const Json& json, const std::string& where);

}  // namespace opgate::text

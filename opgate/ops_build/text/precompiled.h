// The map of characters that SentencePiece compiles: which characters take the place of others.
#pragma once

#include <optional>
#include <vector>

#include "aligned_text.h"

namespace opgate::text {

class Precompiled {
 public:
  /// Reads a map in base64. Throws TokenizerError.
  Precompiled(const std::string& base64, const std::string& where);

  /// How many bytes behind `at`, where a grapheme begins, surely stay as they are. A grapheme begins behind them too.
  std::size_t kept(std::string_view text, std::size_t at) const;

  /// Writes `text`, which the writer passes over, with the characters replaced.
  void write(std::string_view text, Rewriter& out) const;

 private:
  /// What takes the place of a text whose first characters are in the map.
  std::optional<std::string_view> replacement(std::string_view text) const;

  std::vector<std::uint32_t> units_;  // a double array of Darts
  std::string texts_;                 // with a 0 behind each
  std::vector<std::uint8_t> kinds_;   // of the characters below U+10000
};

}  // namespace opgate::text

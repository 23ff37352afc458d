// A signature's tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace opgate {

struct Token {
  enum class Kind { end, identifier, number, string, punctuation };
  Kind kind = Kind::end;
  std::string text;
  int column = 1;
};

/// The tokens of a signature, the last one of kind `end`. Throws SignatureError.
std::vector<Token> tokens_of(std::string_view text);

/// "'text'"
std::string quoted(std::string_view text);

/// Throws SignatureError.
[[noreturn]] void fail(int column, const std::string& what);

}  // namespace opgate

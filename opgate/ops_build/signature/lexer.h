// The tokens of a signature, and the error with the column.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace opgate {

/// A message about a bad signature, and the column of the mistake, counted from 1.
class SignatureError : public std::runtime_error {
 public:
  SignatureError(int column, const std::string& what) : std::runtime_error(what), column(column) {}
  int column;
};

struct Token {
  enum class Kind { end, identifier, number, string, punctuation };
  Kind kind = Kind::end;
  std::string text;
  int column = 1;
};

/// The tokens of a signature. The last one has the kind `end`. Throws SignatureError.
std::vector<Token> tokens_of(std::string_view text);

/// "'text'"
std::string quoted(std::string_view text);

/// Throws SignatureError.
[[noreturn]] void fail(int column, const std::string& what);

}  // namespace opgate

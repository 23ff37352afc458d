#include "lexer.h"

#include <cctype>

namespace opgate {

void fail(int column, const std::string& what) { throw SignatureError(column, what); }

std::string quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

namespace {

bool starts_identifier(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool continues_identifier(char c) { return starts_identifier(c) || std::isdigit(static_cast<unsigned char>(c)); }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)); }

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  std::vector<Token> tokens() {
    std::vector<Token> all;
    do {
      all.push_back(next());
    } while (all.back().kind != Token::Kind::end);
    return all;
  }

 private:
  Token next() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    Token token;
    token.column = static_cast<int>(at_) + 1;
    if (at_ == text_.size()) return token;
    const char c = text_[at_];
    if (starts_identifier(c)) {
      token.kind = Token::Kind::identifier;
      token.text = take_while(continues_identifier);
    } else if (is_digit(c) || (c == '.' && at_ + 1 < text_.size() && is_digit(text_[at_ + 1]))) {
      token.kind = Token::Kind::number;
      token.text = number();
    } else if (c == '"') {
      token.kind = Token::Kind::string;
      token.text = string(token.column);
    } else {
      token.kind = Token::Kind::punctuation;
      token.text = punctuation(token.column);
    }
    return token;
  }

  template <typename Predicate>
  std::string take_while(Predicate wanted) {
    const std::size_t start = at_;
    while (at_ < text_.size() && wanted(text_[at_])) ++at_;
    return std::string(text_.substr(start, at_ - start));
  }

  std::string number() {
    std::string text = take_while(is_digit);
    if (at_ + 1 < text_.size() && text_[at_] == '.' && text_[at_ + 1] != '.') {
      text += text_[at_++];
      text += take_while(is_digit);
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      text += text_[at_++];
      if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) text += text_[at_++];
      text += take_while(is_digit);
    }
    return text;
  }

  std::string string(int column) {
    std::string text;
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] != '\\') {
        text += text_[at_];
        continue;
      }
      if (++at_ == text_.size()) break;
      switch (text_[at_]) {
        case 'n': text += '\n'; break;
        case 't': text += '\t'; break;
        case '"':
        case '\\': text += text_[at_]; break;
        default: fail(static_cast<int>(at_), "unknown escape '\\" + std::string(1, text_[at_]) + "' in a string");
      }
    }
    if (at_ == text_.size()) fail(column, "a string that does not end");
    ++at_;
    return text;
  }

  std::string punctuation(int column) {
    for (std::string_view known : {"...", "->", "<="}) {
      if (text_.substr(at_, known.size()) == known) {
        at_ += known.size();
        return std::string(known);
      }
    }
    const char c = text_[at_];
    if (std::string_view("<>()[]{},;:|?*=+-/%").find(c) == std::string_view::npos) {
      std::size_t end = at_ + 1;  // the end of the UTF-8 sequence
      while (end < text_.size() && (static_cast<unsigned char>(text_[end]) & 0xc0) == 0x80) ++end;
      fail(column, "unexpected character " + quoted(text_.substr(at_, end - at_)));
    }
    ++at_;
    return std::string(1, c);
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view text) { return Lexer(text).tokens(); }

}  // namespace opgate

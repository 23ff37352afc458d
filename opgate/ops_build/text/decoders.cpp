#include "decoders.h"

#include <algorithm>

#include "bytes_alphabet.h"
#include "pattern.h"

namespace opgate::text {
namespace {

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t found = std::min(text.find(from, at), text.size());
    result += text.substr(at, found - at);
    if (found < text.size()) result += to;
    at = found + from.size();
  }
  return result;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part;
  return text;
}

/// Takes out the spaces that words of English don't have.
std::string without_spaces(std::string text) {
  static constexpr std::string_view kRules[][2] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  if (text.find(' ') == std::string::npos) return text;
  for (const auto& [from, to] : kRules) text = replaced(text, from, to);
  return text;
}

/// A string that must not be empty.
std::string filled(const Json& json, const std::string& where) {
  if (json.text(where).empty()) throw TokenizerError(where + ": expected a text that is not empty");
  return json.text(where);
}

class BpeDecoder : public Decoder {
 public:
  explicit BpeDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(std::vector<std::string>& parts) const override {
    for (std::string& part : parts) part = replaced(part, suffix_, &part == &parts.back() ? "" : " ");
  }

 private:
  std::string suffix_;
};

class ByteLevelDecoder : public Decoder {
 public:
  void apply(std::vector<std::string>& parts) const override {
    std::string bytes;
    for (const std::string& part : parts) append_bytes(part, bytes);
    parts.assign(1, repaired(bytes));
  }

 private:
  /// The bytes that the characters of a text stand for, or the text itself if one stands for none.
  static void append_bytes(const std::string& text, std::string& bytes) {
    const std::size_t before = bytes.size();
    for (std::size_t at = 0; at < text.size();) {
      const Character c = character_at(text.data() + at);
      const int byte = byte_of(c.code);
      if (byte < 0) {
        bytes.resize(before);
        bytes += text;
        return;
      }
      bytes += static_cast<char>(byte);
      at += c.length;
    }
  }
};

class WordPieceDecoder : public Decoder {
 public:
  WordPieceDecoder(const Json& json, const std::string& where)
      : prefix_(json.at("prefix", where).text(where + ".prefix")),
        cleanup_(json.at("cleanup", where).boolean(where + ".cleanup")) {}

  void apply(std::vector<std::string>& parts) const override {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i > 0) {
        if (parts[i].starts_with(prefix_))
          parts[i].erase(0, prefix_.size());
        else
          parts[i].insert(0, " ");
      }
      if (cleanup_) parts[i] = without_spaces(std::move(parts[i]));
    }
  }

 private:
  std::string prefix_;
  bool cleanup_;
};

class MetaspaceDecoder : public Decoder {
 public:
  MetaspaceDecoder(const Json& json, const std::string& where)
      : replacement_(filled(json.at("replacement", where), where + ".replacement")),
        prefix_(json.text_or("prepend_scheme", "always", where) != "never") {}

  void apply(std::vector<std::string>& parts) const override {
    for (std::string& part : parts) part = replaced(part, replacement_, prefix_ && &part == &parts.front() ? "" : " ");
  }

 private:
  std::string replacement_;
  bool prefix_;
};

class CtcDecoder : public Decoder {
 public:
  CtcDecoder(const Json& json, const std::string& where)
      : pad_(filled(json.at("pad_token", where), where + ".pad_token")),
        delimiter_(filled(json.at("word_delimiter_token", where), where + ".word_delimiter_token")),
        cleanup_(json.at("cleanup", where).boolean(where + ".cleanup")) {}

  void apply(std::vector<std::string>& parts) const override {
    parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
    for (std::string& part : parts) {
      part = replaced(part, pad_, "");
      if (cleanup_) part = replaced(without_spaces(std::move(part)), delimiter_, " ");
    }
    std::erase_if(parts, [](const std::string& part) { return part.empty(); });
  }

 private:
  std::string pad_, delimiter_;
  bool cleanup_;
};

class ReplaceDecoder : public Decoder {
 public:
  ReplaceDecoder(std::unique_ptr<Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void apply(std::vector<std::string>& parts) const override {
    std::vector<Range> matches;
    for (std::string& part : parts) {
      matches.clear();
      if (!part.empty()) pattern_->find(part, matches);
      std::string text;
      std::size_t at = 0;
      for (const Range match : matches) {
        text.append(part, at, match.begin - at);
        text += content_;
        at = match.end;
      }
      text.append(part, at);
      part = std::move(text);
    }
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  std::string content_;
};

class FuseDecoder : public Decoder {
 public:
  void apply(std::vector<std::string>& parts) const override { parts.assign(1, joined(parts)); }
};

class StripDecoder : public Decoder {
 public:
  StripDecoder(const Json& json, const std::string& where)
      : content_(filled(json.at("content", where), where + ".content")),
        start_(json.at("start", where).whole(where + ".start")),
        stop_(json.at("stop", where).whole(where + ".stop")) {}

  void apply(std::vector<std::string>& parts) const override {
    for (std::string& part : parts) {
      std::string_view left = part;
      for (std::uint64_t i = 0; i < start_ && left.starts_with(content_); ++i) left.remove_prefix(content_.size());
      for (std::uint64_t i = 0; i < stop_ && left.ends_with(content_); ++i) left.remove_suffix(content_.size());
      part = std::string(left);
    }
  }

 private:
  std::string content_;
  std::uint64_t start_, stop_;
};

class ByteFallbackDecoder : public Decoder {
 public:
  void apply(std::vector<std::string>& parts) const override {
    std::vector<std::string> result;
    std::string bytes;
    const auto flush = [&] {
      if (is_utf8(bytes)) {
        if (!bytes.empty()) result.push_back(bytes);
      } else {
        result.insert(result.end(), bytes.size(), "\xef\xbf\xbd");
      }
      bytes.clear();
    };
    for (std::string& part : parts) {
      const int byte = byte_of_token(part);
      if (byte >= 0) {
        bytes += static_cast<char>(byte);
        continue;
      }
      flush();
      result.push_back(std::move(part));
    }
    flush();
    parts = std::move(result);
  }

 private:
  /// The byte of a token like <0x0A>; -1 if it is another token.
  static int byte_of_token(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    const auto digit = [](char c) {
      return c >= '0' && c <= '9'   ? c - '0'
             : c >= 'A' && c <= 'F' ? c - 'A' + 10
             : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                    : -1;
    };
    // Rust reads "+A" as a number too.
    const int high = token[3] == '+' ? 0 : digit(token[3]), low = digit(token[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
  }
};

class DecoderSequence : public Decoder {
 public:
  explicit DecoderSequence(std::vector<std::unique_ptr<Decoder>> steps) : steps_(std::move(steps)) {}
  void apply(std::vector<std::string>& parts) const override {
    for (const auto& step : steps_) step->apply(parts);
  }

 private:
  std::vector<std::unique_ptr<Decoder>> steps_;
};

}  // namespace

std::unique_ptr<Decoder> decoder_of(const Json& json, const std::string& where) {
  if (json.null()) return nullptr;
  const std::string type = json.at("type", where).text(where + ".type");
  if (type == "BPEDecoder") return std::make_unique<BpeDecoder>(filled(json.at("suffix", where), where + ".suffix"));
  if (type == "ByteLevel") return std::make_unique<ByteLevelDecoder>();
  if (type == "WordPiece") return std::make_unique<WordPieceDecoder>(json, where);
  if (type == "Metaspace") return std::make_unique<MetaspaceDecoder>(json, where);
  if (type == "CTC") return std::make_unique<CtcDecoder>(json, where);
  if (type == "Fuse") return std::make_unique<FuseDecoder>();
  if (type == "Strip") return std::make_unique<StripDecoder>(json, where);
  if (type == "ByteFallback") return std::make_unique<ByteFallbackDecoder>();
  if (type == "Replace") {
    return std::make_unique<ReplaceDecoder>(pattern_of(json.at("pattern", where), where + ".pattern"),
                                            json.at("content", where).text(where + ".content"));
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Decoder>> steps;
    for (const Json& step : json.at("decoders", where).items(where + ".decoders")) {
      const std::string place = where + ".decoders[" + std::to_string(steps.size()) + "]";
      steps.push_back(decoder_of(step, place));
      if (!steps.back()) throw TokenizerError(place + ": expected a decoder");
    }
    return std::make_unique<DecoderSequence>(std::move(steps));
  }
  throw TokenizerError(where + ": unknown decoder '" + type + "'");
}

}  // namespace opgate::text

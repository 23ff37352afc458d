#include "tokenizer.h"

#include <algorithm>
#include <limits>

#include "bytes_alphabet.h"
#include "unicode.h"

namespace opgate::text {
namespace {

/// How many spaces, or characters that stand for one, a text begins and ends with.
void count_space(std::string_view text, Entry& entry) {
  const Unicode& unicode = Unicode::tables();
  const auto is_space = [&](char32_t c) { return c == kBytesAlphabet[' '] || unicode.has(c, kSpace); };
  for (std::size_t at = 0; at < text.size();) {
    const Character c = character_at(text.data() + at);
    if (!is_space(c.code)) break;
    at += c.length;
    ++entry.space_before;
  }
  for (std::size_t end = text.size(); end > 0;) {
    const Character c = character_before(text.data() + end);
    if (!is_space(c.code)) break;
    end -= c.length;
    ++entry.space_after;
  }
}

/// Turns the offsets of entries from bytes to characters.
void count_characters(std::string_view text, Part& part) {
  if (is_ascii(text)) return;
  thread_local std::vector<std::uint32_t> character;  // by byte
  character.resize(text.size());
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    count += !continues(text[i]);
    character[i] = count - 1;
  }
  for (Entry& entry : part) {
    if (entry.begin >= text.size()) continue;
    const std::uint32_t begin = character[entry.begin];
    entry.end = entry.end < text.size()                        ? character[entry.end]
                : entry.end > 0 && entry.end - 1 < text.size() ? character[entry.end - 1] + 1
                                                               : begin + 2;
    entry.begin = begin;
  }
}

}  // namespace

Tokenizer::Tokenizer(std::string_view text) {
  const Json json = Json::parse(text);
  const Json none;
  const auto member = [&](const char* name) -> const Json& {
    const Json* found = json.find(name);
    return found ? *found : none;
  };
  normalizer_ = normalizer_of(member("normalizer"), "normalizer");
  pre_tokenizers_ = pre_tokenizers_of(member("pre_tokenizer"), "pre_tokenizer");
  model_ = model_of(json.at("model", "the file"), pre_tokenizers_.bytes);
  static const Json kEmpty{Json::Items()};
  added_tokens_ = std::make_unique<AddedTokens>(member("added_tokens").null() ? kEmpty : member("added_tokens"),
                                                *model_, normalizer_.get());
  post_processor_ = post_processor_of(member("post_processor"), "post_processor");
  decoder_ = decoder_of(member("decoder"), "decoder");
  read_truncation(member("truncation"));
  read_padding(member("padding"));
}

void Tokenizer::read_truncation(const Json& json) {
  if (json.null()) return;
  max_length_ = json.at("max_length", "truncation").whole("truncation.max_length");
  const std::string strategy = json.at("strategy", "truncation").text("truncation.strategy");
  if (strategy == "OnlyFirst")
    cut_ = Cut::only_first;
  else if (strategy == "OnlySecond")
    cut_ = Cut::only_second;
  else if (strategy != "LongestFirst")
    throw TokenizerError("truncation.strategy: unknown strategy '" + strategy + "'");
  cut_left_ = json.text_or("direction", "Right", "truncation") == "Left";
}

void Tokenizer::read_padding(const Json& json) {
  if (json.null()) return;
  padding_.left = json.at("direction", "padding").text("padding.direction") == "Left";
  padding_.id = json.at("pad_id", "padding").id("padding.pad_id");
  padding_.type = json.at("pad_type_id", "padding").id("padding.pad_type_id");
  if (const Json* fixed = json.at("strategy", "padding").find("Fixed")) {
    padding_.length = fixed->whole("padding.strategy.Fixed");
  } else if (const std::string& name = json.at("strategy", "padding").text("padding.strategy");
             name != "BatchLongest") {
    throw TokenizerError("padding.strategy: unknown strategy '" + name + "'");
  }
  if (const Json* multiple = json.find("pad_to_multiple_of"); multiple && !multiple->null()) {
    padding_.multiple = std::max<std::uint64_t>(1, multiple->whole("padding.pad_to_multiple_of"));
  }
}

void Tokenizer::encode(std::string_view text, std::optional<std::string_view> pair, const Limits& limits,
                       Part& entries) const {
  std::uint64_t most = std::min(limits.max_length, max_length_.value_or(limits.max_length));
  if (limits.add_special_tokens) most -= std::min<std::uint64_t>(most, special_tokens(pair.has_value()));
  std::vector<Part> parts(pair ? 2 : 1);
  // No more tokens than these are needed, unless the last ones are. Of a pair it matters which text is longer.
  const std::uint64_t needed = cut_left_ || pair ? std::numeric_limits<std::uint64_t>::max() : most + 1;
  encode_one(text, needed, parts[0]);
  if (pair) encode_one(*pair, needed, parts[1]);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (Entry& entry : parts[i]) {
      entry.type = static_cast<std::uint32_t>(i);
      entry.sequence = static_cast<std::int8_t>(i);
    }
  }
  cut(parts, most);
  if (post_processor_) post_processor_->apply(parts, limits.add_special_tokens);
  entries.clear();
  for (const Part& part : parts) entries.insert(entries.end(), part.begin(), part.end());
}

std::optional<std::string_view> Tokenizer::text_of(std::int64_t id, bool skip_special_tokens) const {
  if (id < 0 || id > std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
  std::optional<std::string_view> text = model_->vocabulary().text(static_cast<std::uint32_t>(id));
  if (const std::string* added = added_tokens_->text(static_cast<std::uint32_t>(id))) text = *added;
  if (text && skip_special_tokens && added_tokens_->is_special(*text)) return std::nullopt;
  return text;
}

std::string Tokenizer::decode(std::span<const std::int64_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> parts;
  for (const std::int64_t id : ids) {
    if (const auto text = text_of(id, skip_special_tokens)) parts.emplace_back(*text);
  }
  if (decoder_) decoder_->apply(parts);
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!decoder_ && i > 0) text += ' ';
    text += parts[i];
  }
  return text;
}

void Tokenizer::cut(std::vector<Part>& parts, std::uint64_t most) const {
  const std::uint64_t first = parts[0].size(), second = parts.size() > 1 ? parts[1].size() : 0;
  if (first + second <= most) return;
  if (cut_ == Cut::longest_first) {
    if (parts.size() == 1) return cut(parts[0], most);
    const bool swapped = first > second;
    std::uint64_t shorter = std::min(first, second), longer = std::max(shorter, most - std::min(most, shorter));
    if (shorter + longer > most) {
      shorter = most / 2;
      longer = shorter + most % 2;
    }
    cut(parts[0], swapped ? longer : shorter);
    cut(parts[1], swapped ? shorter : longer);
    return;
  }
  const std::size_t target = cut_ == Cut::only_first ? 0 : 1;
  if (target >= parts.size()) throw ModelError("truncation.strategy is OnlySecond, and there is no pair");
  const std::uint64_t other = target == 0 ? second : first;
  if (other >= most && most > 0) throw ModelError("the text that truncation.strategy leaves whole is too long");
  cut(parts[target], most - std::min(most, other));
  if (most == 0 && parts.size() > 1) parts[1 - target].clear();
}

void Tokenizer::cut(Part& part, std::uint64_t length) const {
  if (part.size() <= length) return;
  if (cut_left_) part.erase(part.begin(), part.end() - static_cast<std::ptrdiff_t>(length));
  part.resize(length);
}

void Tokenizer::encode_one(std::string_view text, std::uint64_t most, Part& part) const {
  if (text.size() > std::numeric_limits<std::int32_t>::max()) throw ModelError("a text of more than 2^31 bytes");
  const std::string good = is_utf8(text) ? std::string() : repaired(text);
  if (!good.empty()) text = good;
  std::vector<AddedTokens::Match> matches;
  added_tokens_->find(text, false, matches);
  std::uint32_t at = 0;
  for (const AddedTokens::Match& match : matches) {
    if (at < match.range.begin) encode_section(text.substr(at, match.range.begin - at), at, most, part);
    const std::string_view content = text.substr(match.range.begin, match.range.end - match.range.begin);
    part.push_back(added_entry(match.id, content, match.range));
    at = match.range.end;
  }
  if (at < text.size()) encode_section(text.substr(at), at, most, part);
  count_characters(text, part);
}

Entry Tokenizer::added_entry(std::uint32_t id, std::string_view text, Range origin) const {
  Entry entry{.id = id, .begin = origin.begin, .end = origin.end};
  if (post_processor_ && post_processor_->trims()) count_space(text, entry);
  return entry;
}

void Tokenizer::encode_section(std::string_view section, std::uint32_t shift, std::uint64_t most, Part& part) const {
  thread_local Pieces pieces;
  thread_local std::vector<Token> tokens;
  thread_local std::vector<AddedTokens::Match> matches;
  AlignedText& text = pieces.text;
  text.assign(section, shift);
  if (normalizer_) normalizer_->apply(text, pieces.spare_text);
  if (text.empty()) return;

  pieces.spare_pieces.clear();
  matches.clear();
  added_tokens_->find(text.view(), true, matches);
  std::uint32_t at = 0;
  for (const AddedTokens::Match& match : matches) {
    pieces.cut({at, std::max(at, match.range.begin)});
    if (match.range.begin == match.range.end) continue;
    pieces.cut(match.range);
    pieces.spare_pieces.back().token = match.id;
    at = match.range.end;
  }
  pieces.cut({at, text.size()});
  pieces.pieces.swap(pieces.spare_pieces);
  for (const auto& step : pre_tokenizers_.steps) step->apply(pieces);

  const bool trims = post_processor_ && post_processor_->trims();
  for (const Piece& piece : pieces.pieces) {
    if (part.size() >= most) return;
    const Range whole{text.origin(piece.range.begin).begin, text.origin(piece.range.end - 1).end};
    if (piece.token != kNoToken) {
      part.push_back(added_entry(static_cast<std::uint32_t>(piece.token), text.view(piece.range), whole));
      continue;
    }
    tokens.clear();
    const std::string_view view = text.view(piece.range);
    model_->tokenize(view, tokens);
    for (const Token& token : tokens) {
      Entry& entry = part.emplace_back();
      entry.id = token.id;
      const Range range = token.range;
      if (range.begin == range.end) {
        entry.begin = entry.end = piece.shift + range.begin;
      } else if (range.end > view.size()) {  // `tokenizers` then takes the place in the piece
        entry.begin = range.begin;
        entry.end = range.end;
      } else {
        entry.begin = text.origin(piece.range.begin + range.begin).begin;
        entry.end = text.origin(piece.range.begin + range.end - 1).end;
      }
      if (trims)
        count_space(model_->text_of(token.id, view.substr(std::min<std::size_t>(range.begin, view.size()),
                                                          range.end - range.begin)),
                    entry);
    }
  }
}

}  // namespace opgate::text

#include "added_tokens.h"

#include <algorithm>

#include "unicode.h"

namespace opgate::text {
namespace {

bool is_word(char32_t c) { return Unicode::tables().has(c, kWord); }

/// How many bytes of white space a text begins with.
std::uint32_t space_at_front(std::string_view text) {
  const Unicode& unicode = Unicode::tables();
  std::uint32_t at = 0;
  while (at < text.size()) {
    const Character c = character_at(text.data() + at);
    if (!unicode.has(c.code, kSpace)) break;
    at += c.length;
  }
  return at;
}

/// Where the white space at the end of a text begins.
std::uint32_t space_at_end(std::string_view text) {
  const Unicode& unicode = Unicode::tables();
  auto end = static_cast<std::uint32_t>(text.size());
  while (end > 0) {
    const Character c = character_before(text.data() + end);
    if (!unicode.has(c.code, kSpace)) break;
    end -= c.length;
  }
  return end;
}

}  // namespace

AddedTokens::AddedTokens(const Json& json, const Model& model, const Normalizer* normalizer) {
  std::unordered_map<std::string, std::uint32_t> ids;
  std::unordered_map<std::uint32_t, bool> normalized;
  std::uint32_t next = model.next_id();
  std::size_t i = 0;
  for (const Json& item : json.items("added_tokens")) {
    const std::string where = "added_tokens[" + std::to_string(i++) + "]";
    const auto flag = [&](const char* name) { return item.at(name, where).boolean(where + "." + name); };
    const std::string content = item.at("content", where).text(where + ".content");
    if (content.empty()) continue;
    // The file states an id too. `tokenizers` takes that of the model, or the next free one.
    std::optional<std::uint32_t> id = ids.contains(content) ? ids[content] : model.vocabulary().find(content);
    if (!id) id = next++;
    ids[content] = *id;
    Added token{content, content, flag("single_word"), flag("lstrip"), flag("rstrip")};
    normalized[*id] = flag("normalized");
    if (normalized[*id] && normalizer) {
      AlignedText text, spare;
      text.assign(content, 0);
      normalizer->apply(text, spare);
      token.decoded = text.view();
    }
    if (flag("special")) special_.insert(content);
    tokens_[*id] = std::move(token);
  }
  // Of two tokens that are one text when they are normalized, the later one is found.
  std::vector<std::uint32_t> in_order;
  for (const auto& [id, token] : tokens_) in_order.push_back(id);
  std::ranges::sort(in_order);
  std::vector<Trie::Entry> entries[2];
  for (const std::uint32_t id : in_order) {
    const Added& token = tokens_.at(id);
    const std::string& text = normalized[id] ? token.decoded : token.content;
    if (text.empty())
      throw TokenizerError("added_tokens: nothing is left of '" + token.content + "' when it is normalized");
    entries[normalized[id]].push_back({text, static_cast<std::int32_t>(id)});
  }
  for (int i = 0; i < 2; ++i) tries_[i] = Trie(std::move(entries[i]));
}

void AddedTokens::find(std::string_view text, bool normalized, std::vector<Match>& matches) const {
  const Trie& trie = tries_[normalized];
  if (trie.empty()) return;
  std::uint32_t taken = 0;  // behind the last match
  Range space{0, 0};        // white space that has been looked through
  for (std::uint32_t at = 0; at < text.size();) {
    const Trie::Match found = trie.begins(text[at]) ? trie.longest_prefix(text.substr(at)) : Trie::Match();
    if (found.length == 0) {
      ++at;
      continue;
    }
    std::uint32_t begin = at, end = at + found.length;
    at = end;
    const auto id = static_cast<std::uint32_t>(found.value);
    const Added& token = tokens_.at(id);
    if (token.single_word && ((begin > 0 && is_word(character_before(text.data() + begin).code)) ||
                              (end < text.size() && is_word(character_at(text.data() + end).code)))) {
      continue;
    }
    if (token.strip_left)
      begin = std::min(end, taken + space_at_end(text.substr(taken, begin - std::min(begin, taken))));
    if (token.strip_right) {
      if (end < space.begin || end > space.end) space = {end, end + space_at_front(text.substr(end))};
      end = space.end;
    }
    matches.push_back({{begin, end}, id});
    taken = end;
  }
}

const std::string* AddedTokens::text(std::uint32_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second.decoded;
}

}  // namespace opgate::text

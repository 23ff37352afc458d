#include "post_processors.h"

#include <algorithm>
#include <map>

namespace opgate::text {
namespace {

Entry special_entry(std::uint32_t id, std::uint32_t type) { return {.id = id, .type = type, .special = true}; }

/// Leaves out the white space at the ends of tokens.
void trim(std::vector<Part>& parts, bool prefix_space) {
  for (Part& part : parts) {
    for (std::size_t i = 0; i < part.size(); ++i) {
      Entry& entry = part[i];
      std::uint32_t before = entry.space_before;
      // The space that was added before the first token stands for no character.
      if (before == 1 && prefix_space && (i == 0 || entry.begin == 0)) before = 0;
      if (before > 0) entry.begin = std::min(entry.begin + before, entry.end);
      if (entry.space_after > 0 && entry.end >= entry.space_after) {
        entry.end = std::max(entry.end - entry.space_after, entry.begin);
      }
    }
  }
}

/// ["[SEP]", 102]
std::uint32_t id_of_pair(const Json& json, const std::string& where) {
  const Json::Items& pair = json.items(where);
  if (pair.size() != 2) throw TokenizerError(where + ": expected a token and its id");
  return pair[1].id(where + "[1]");
}

class BertProcessing : public PostProcessor {
 public:
  BertProcessing(const Json& json, const std::string& where)
      : separator_(id_of_pair(json.at("sep", where), where + ".sep")),
        begin_(id_of_pair(json.at("cls", where), where + ".cls")) {}

  std::size_t added(bool pair) const override { return pair ? 3 : 2; }

  void apply(std::vector<Part>& parts, bool add_special_tokens) const override {
    if (!add_special_tokens) return;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i == 0) parts[i].insert(parts[i].begin(), special_entry(begin_, 0));
      parts[i].push_back(special_entry(separator_, i == 0 ? 0 : 1));
    }
  }

 private:
  std::uint32_t separator_, begin_;
};

class RobertaProcessing : public PostProcessor {
 public:
  RobertaProcessing(const Json& json, const std::string& where)
      : separator_(id_of_pair(json.at("sep", where), where + ".sep")),
        begin_(id_of_pair(json.at("cls", where), where + ".cls")),
        trims_(json.at("trim_offsets", where).boolean(where + ".trim_offsets")),
        prefix_space_(json.at("add_prefix_space", where).boolean(where + ".add_prefix_space")) {}

  std::size_t added(bool pair) const override { return pair ? 4 : 2; }
  bool trims() const override { return trims_; }

  void apply(std::vector<Part>& parts, bool add_special_tokens) const override {
    if (trims_) trim(parts, prefix_space_);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (Entry& entry : parts[i]) entry.type = 0;
      if (!add_special_tokens) continue;
      parts[i].insert(parts[i].begin(), special_entry(i == 0 ? begin_ : separator_, 0));
      parts[i].push_back(special_entry(separator_, 0));
    }
  }

 private:
  std::uint32_t separator_, begin_;
  bool trims_, prefix_space_;
};

class ByteLevelProcessing : public PostProcessor {
 public:
  ByteLevelProcessing(const Json& json, const std::string& where)
      : trims_(json.at("trim_offsets", where).boolean(where + ".trim_offsets")),
        prefix_space_(json.at("add_prefix_space", where).boolean(where + ".add_prefix_space")) {}

  std::size_t added(bool) const override { return 0; }
  bool trims() const override { return trims_; }
  void apply(std::vector<Part>& parts, bool) const override {
    if (trims_) trim(parts, prefix_space_);
  }

 private:
  bool trims_, prefix_space_;
};

class TemplateProcessing : public PostProcessor {
 public:
  TemplateProcessing(const Json& json, const std::string& where) {
    std::map<std::string, std::vector<std::uint32_t>> tokens;
    for (const auto& [name, token] : json.at("special_tokens", where).members(where + ".special_tokens")) {
      const std::string place = where + ".special_tokens['" + name + "']";
      for (const Json& id : token.at("ids", place).items(place + ".ids")) tokens[name].push_back(id.id(place + ".ids"));
    }
    const auto read = [&](const char* name) {
      std::vector<Step> steps;
      const std::string place = where + "." + name;
      for (const Json& item : json.at(name, where).items(place)) {
        if (const Json* sequence = item.find("Sequence")) {
          const std::string& id = sequence->at("id", place).text(place + ".id");
          if (id != "A" && id != "B") throw TokenizerError(place + ": expected the sequence A or B, got '" + id + "'");
          steps.push_back({id == "A" ? 0 : 1, sequence->at("type_id", place).id(place + ".type_id"), {}});
        } else {
          const Json& special = item.at("SpecialToken", place);
          const std::string& id = special.at("id", place).text(place + ".id");
          if (!tokens.contains(id)) throw TokenizerError(place + ": '" + id + "' is not among special_tokens");
          steps.push_back({-1, special.at("type_id", place).id(place + ".type_id"), tokens[id]});
        }
      }
      return steps;
    };
    single_ = read("single");
    pair_ = read("pair");
    if (std::ranges::any_of(single_, [](const Step& step) { return step.sequence == 1; })) {
      throw TokenizerError(where + ".single: there is no sequence B");
    }
  }

  std::size_t added(bool pair) const override {
    std::size_t count = 0;
    for (const Step& step : pair ? pair_ : single_) count += step.ids.size();
    return count;
  }

  void apply(std::vector<Part>& parts, bool add_special_tokens) const override {
    std::vector<Part> filled;
    for (const Step& step : parts.size() == 2 ? pair_ : single_) {
      if (step.sequence >= 0) {
        filled.push_back(parts[static_cast<std::size_t>(step.sequence)]);
        for (Entry& entry : filled.back()) entry.type = step.type;
      } else if (add_special_tokens) {
        Part& part = filled.emplace_back();
        for (const std::uint32_t id : step.ids) part.push_back(special_entry(id, step.type));
      }
    }
    parts = std::move(filled);
  }

 private:
  struct Step {
    int sequence;  ///< -1: special tokens
    std::uint32_t type;
    std::vector<std::uint32_t> ids;
  };

  std::vector<Step> single_, pair_;
};

class PostProcessorSequence : public PostProcessor {
 public:
  explicit PostProcessorSequence(std::vector<std::unique_ptr<PostProcessor>> parts) : parts_(std::move(parts)) {}

  std::size_t added(bool pair) const override {
    std::size_t count = 0;
    for (const auto& part : parts_) count += part->added(pair);
    return count;
  }
  bool trims() const override {
    return std::ranges::any_of(parts_, [](const auto& part) { return part->trims(); });
  }
  void apply(std::vector<Part>& parts, bool add_special_tokens) const override {
    for (const auto& part : parts_) part->apply(parts, add_special_tokens);
  }

 private:
  std::vector<std::unique_ptr<PostProcessor>> parts_;
};

}  // namespace

std::unique_ptr<PostProcessor> post_processor_of(const Json& json, const std::string& where) {
  if (json.null()) return nullptr;
  const std::string type = json.at("type", where).text(where + ".type");
  if (type == "BertProcessing") return std::make_unique<BertProcessing>(json, where);
  if (type == "RobertaProcessing") return std::make_unique<RobertaProcessing>(json, where);
  if (type == "ByteLevel") return std::make_unique<ByteLevelProcessing>(json, where);
  if (type == "TemplateProcessing") return std::make_unique<TemplateProcessing>(json, where);
  if (type == "Sequence") {
    std::vector<std::unique_ptr<PostProcessor>> parts;
    for (const Json& part : json.at("processors", where).items(where + ".processors")) {
      const std::string place = where + ".processors[" + std::to_string(parts.size()) + "]";
      parts.push_back(post_processor_of(part, place));
      if (!parts.back()) throw TokenizerError(place + ": expected a post-processor");
    }
    return std::make_unique<PostProcessorSequence>(std::move(parts));
  }
  throw TokenizerError(where + ": unknown post-processor '" + type + "'");
}

}  // namespace opgate::text

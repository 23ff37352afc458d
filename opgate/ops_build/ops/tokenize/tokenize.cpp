#include "tokenize.h"

#include <algorithm>

#include "text/tokenizer_attribute.h"

namespace opgate::ops::tokenize {
namespace {

/// The texts of one task. A text takes about as long as starting a task.
constexpr std::int64_t kGrain = 1;

class Cpu {
 public:
  static Status check(const Attributes& attributes, const KnownSizes&) {
    return attributes.integer("max_length") >= 1 ? Status() : attributes.refuse("max_length", "a positive number");
  }

  Status prepare(const Node& node) {
    const Attributes& attributes = node.attributes();
    OPGATE_RETURN_IF_ERROR(text::read_tokenizer(node, tokenizer_));
    const std::size_t special =
        attributes.boolean("add_special_tokens") ? tokenizer_->special_tokens(node.has("pair")) : 0;
    if (attributes.integer("max_length") < static_cast<std::int64_t>(special)) {
      return attributes.refuse("max_length", "at least the " + std::to_string(special) + " special tokens");
    }
    return {};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n");
    const auto texts = in["text"].span<std::string_view>();
    const auto pairs = in.has("pair") ? in["pair"].span<std::string_view>() : std::span<const std::string_view>();
    const text::Tokenizer::Limits limits{static_cast<std::uint64_t>(attributes.integer("max_length")),
                                         attributes.boolean("add_special_tokens")};
    std::vector<text::Part> rows(static_cast<std::size_t>(n));
    std::vector<std::string> errors(static_cast<std::size_t>(n));
    context.parallel_for(n, kGrain, [&](std::int64_t first, std::int64_t last) {
      for (auto row = static_cast<std::size_t>(first); row < static_cast<std::size_t>(last); ++row) {
        try {
          tokenizer_->encode(texts[row], pairs.empty() ? std::nullopt : std::optional(pairs[row]), limits, rows[row]);
        } catch (const std::runtime_error& error) {
          errors[row] = error.what();
        }
      }
    });
    for (std::size_t row = 0; row < rows.size(); ++row) {
      if (!errors[row].empty()) {
        return Status::invalid("input 'text': row " + std::to_string(row) + ": " + errors[row]);
      }
    }
    const std::int64_t width = width_of(rows, attributes.integer("max_length"));
    OPGATE_RETURN_IF_ERROR(out.bind("s", width));
    write(rows, width, out);
    return {};
  }

 private:
  /// The length of all rows: that of the longest one, padded as the file says and `most` at most.
  std::int64_t width_of(const std::vector<text::Part>& rows, std::int64_t most) const {
    if (rows.empty()) return 0;
    const text::Padding& padding = tokenizer_->padding();
    std::uint64_t width = padding.length;
    for (const text::Part& row : rows) width = std::max<std::uint64_t>(width, row.size());
    width = std::min<std::uint64_t>(width, static_cast<std::uint64_t>(most));
    width += (padding.multiple - width % padding.multiple) % padding.multiple;
    return std::min(static_cast<std::int64_t>(width), most);
  }

  void write(const std::vector<text::Part>& rows, std::int64_t width, Outputs& out) const {
    const text::Padding& padding = tokenizer_->padding();
    auto* const ids = out["ids"].data<std::int64_t>();
    auto* const mask = out["mask"].data<std::int64_t>();
    auto* const types = out["types"].data<std::int64_t>();
    auto* const offsets = out.has("offsets") ? out["offsets"].data<std::int32_t>() : nullptr;
    auto* const special = out.has("special") ? out["special"].data<std::int64_t>() : nullptr;
    auto* const length = out.has("length") ? out["length"].data<std::int32_t>() : nullptr;
    const text::Entry pad{.id = padding.id, .type = padding.type, .special = true};
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const auto count = static_cast<std::int64_t>(rows[row].size());
      const std::int64_t first = padding.left ? width - count : 0;
      if (length) length[row] = static_cast<std::int32_t>(count);
      for (std::int64_t i = 0; i < width; ++i) {
        const bool real = i >= first && i < first + count;
        const text::Entry& entry = real ? rows[row][static_cast<std::size_t>(i - first)] : pad;
        const std::int64_t at = static_cast<std::int64_t>(row) * width + i;
        ids[at] = entry.id;
        mask[at] = real;
        types[at] = entry.type;
        if (special) special[at] = entry.special;
        if (offsets) {
          offsets[2 * at] = static_cast<std::int32_t>(entry.begin);
          offsets[2 * at + 1] = static_cast<std::int32_t>(entry.end);
        }
      }
    }
  }

  std::unique_ptr<text::Tokenizer> tokenizer_;
};

}  // namespace
}  // namespace opgate::ops::tokenize

OPGATE_CPU_KERNEL(Tokenize, opgate::ops::tokenize::Cpu)

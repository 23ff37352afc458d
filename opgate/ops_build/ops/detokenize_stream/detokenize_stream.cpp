#include "detokenize_stream.h"

#include <algorithm>

#include "text/tokenizer_attribute.h"

namespace opgate::ops::detokenize_stream {
namespace {

/// The numbers of a state before its ids: how many ids are held, and of how many of them the text has been given.
constexpr std::int64_t kBefore = 2;

class Cpu {
 public:
  Status prepare(const Node& node) { return text::read_tokenizer(node, tokenizer_); }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n"), s = in.size("s"), k = in.size("k");
    const auto ids = in["ids"].span<std::int64_t>(), states = in["state"].span<std::int64_t>();
    const std::int32_t* const end = in.has("end") ? in["end"].data<std::int32_t>() : nullptr;
    OPGATE_RETURN_IF_ERROR(check_states(states, n, k));
    const bool skip = attributes.boolean("skip_special_tokens");
    auto* const texts = out["text"].data<std::string>();
    auto* const new_states = out["new_state"].data<std::int64_t>();
    std::vector<std::string> errors(static_cast<std::size_t>(n));
    context.parallel_for(n, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        const std::int64_t* const state = states.data() + row * k;
        Stream stream{{state + kBefore, state + kBefore + state[0]}, static_cast<std::size_t>(state[1])};
        const auto more = ids.subspan(static_cast<std::size_t>(row * s), static_cast<std::size_t>(s));
        try {
          texts[row] = step(stream, more, end && end[row] != 0, skip);
          write(stream, k, new_states + row * k);
        } catch (const std::runtime_error& error) {
          errors[static_cast<std::size_t>(row)] = error.what();
        }
      }
    });
    for (std::size_t row = 0; row < errors.size(); ++row) {
      if (!errors[row].empty()) return Status::invalid("input 'ids': row " + std::to_string(row) + ": " + errors[row]);
    }
    return {};
  }

 private:
  /// The last ids. A token's text may depend on those before it, and so those whose text has been given stay a while.
  struct Stream {
    std::vector<std::int64_t> ids;
    std::size_t given;  ///< the text of so many ids has been given
  };

  static Status check_states(std::span<const std::int64_t> states, std::int64_t n, std::int64_t k) {
    if (k < kBefore)
      return Status::invalid("input 'state': expected rows of 2 numbers or more, got " + std::to_string(k));
    for (std::int64_t row = 0; row < n; ++row) {
      const std::int64_t held = states[static_cast<std::size_t>(row * k)];
      const std::int64_t given = states[static_cast<std::size_t>(row * k + 1)];
      if (held >= 0 && held <= k - kBefore && given >= 0 && given <= held) continue;
      return Status::invalid("input 'state': row " + std::to_string(row) + ": expected how many ids are held, 0.." +
                             std::to_string(k - kBefore) + ", and of how many the text has been given, no more, got " +
                             std::to_string(held) + " and " + std::to_string(given));
    }
    return {};
  }

  std::string decoded(std::span<const std::int64_t> ids, bool skip) const {
    return ids.empty() ? std::string() : tokenizer_->decode(ids, skip);
  }

  /// The text that `more` ids add, as DecodeStream of `tokenizers` gives it; at the end all that is left.
  std::string step(Stream& stream, std::span<const std::int64_t> more, bool end, bool skip) const {
    const auto whole = [](std::string_view text) { return !text.ends_with("\xef\xbf\xbd"); };
    std::vector<std::int64_t>& ids = stream.ids;
    std::string before = decoded(std::span(ids).first(stream.given), skip);
    if (before.empty()) {
      std::string all = decoded(ids, skip);
      if (whole(all)) {
        before = std::move(all);
        stream.given = ids.size();
      }
    }
    std::ranges::copy_if(more, std::back_inserter(ids),
                         [&](std::int64_t id) { return tokenizer_->has_text(id, skip); });
    std::string all = decoded(ids, skip);
    const auto ready = [&] { return end || (all.size() > before.size() && whole(all)); };
    if (ready() && !all.starts_with(before)) {
      // The decoder changes what has been given. That stays, and the other ids begin a text of their own.
      ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(stream.given));
      stream.given = 0;
      before.clear();
      all = decoded(ids, skip);
    }
    std::string text;
    if (ready()) {
      text = all.substr(before.size());
      ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(stream.given));
      stream.given = ids.size();
    }
    if (end) stream = {};
    return text;
  }

  static void write(const Stream& stream, std::int64_t k, std::int64_t* state) {
    const auto held = static_cast<std::int64_t>(stream.ids.size());
    if (held > k - kBefore) {
      throw std::runtime_error("the state has room for " + std::to_string(k - kBefore) + " ids, and " +
                               std::to_string(held) + " make no whole character yet or came at once");
    }
    state[0] = held;
    state[1] = static_cast<std::int64_t>(stream.given);
    std::fill(std::ranges::copy(stream.ids, state + kBefore).out, state + k, 0);
  }

  std::unique_ptr<text::Tokenizer> tokenizer_;
};

}  // namespace
}  // namespace opgate::ops::detokenize_stream

OPGATE_CPU_KERNEL(DetokenizeStream, opgate::ops::detokenize_stream::Cpu)

#include "detokenize.h"

#include <algorithm>

#include "text/tokenizer_attribute.h"

namespace opgate::ops::detokenize {
namespace {

/// The ids of one task.
constexpr std::int64_t kGrain = 256;

class Cpu {
 public:
  Status prepare(const Node& node) { return text::read_tokenizer(node, tokenizer_); }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n"), s = in.size("s");
    const auto ids = in["ids"].span<std::int64_t>();
    const std::int32_t* const length = in.has("length") ? in["length"].data<std::int32_t>() : nullptr;
    for (std::int64_t row = 0; length && row < n; ++row) {
      if (length[row] < 0 || length[row] > s) {
        return Status::invalid("input 'length': row " + std::to_string(row) + ": expected 0.." + std::to_string(s) +
                               ", got " + std::to_string(length[row]));
      }
    }
    const bool skip = attributes.boolean("skip_special_tokens");
    auto* const texts = out["text"].data<std::string>();
    std::vector<std::string> errors(static_cast<std::size_t>(n));
    context.parallel_for(n, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, s)),
                         [&](std::int64_t first, std::int64_t last) {
                           for (std::int64_t row = first; row < last; ++row) {
                             const auto count = static_cast<std::size_t>(length ? length[row] : s);
                             try {
                               texts[row] =
                                   tokenizer_->decode(ids.subspan(static_cast<std::size_t>(row * s), count), skip);
                             } catch (const text::PatternError& error) {
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
  std::unique_ptr<text::Tokenizer> tokenizer_;
};

}  // namespace
}  // namespace opgate::ops::detokenize

OPGATE_CPU_KERNEL(Detokenize, opgate::ops::detokenize::Cpu)

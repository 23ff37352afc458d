#include "ctc_words.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "detection/best_class.h"

namespace opgate::ops::ctc_words {
namespace {

using detection::BestClass, detection::best_of, detection::softmax_of_best;

/// A word, the step of its first label, the one behind the last of its last label, and its probabilities.
struct Word {
  std::string text;
  std::int64_t begin, end;
  double sum;
  std::int64_t labels;
};

/// Spells the words of one row.
class Speller {
 public:
  Speller(const std::vector<std::string>& names, std::string_view delimiter) : names_(names), delimiter_(delimiter) {}

  /// Adds a label that is the best class of the steps from `begin` to `end`.
  void add(std::int64_t label, std::int64_t begin, std::int64_t end, double probability) {
    std::string_view rest = names_[static_cast<std::size_t>(label)];
    while (!rest.empty()) {
      const std::size_t at = delimiter_.empty() ? std::string_view::npos : rest.find(delimiter_);
      if (const std::string_view part = rest.substr(0, at); !part.empty()) {
        if (!open_) words_.push_back({"", begin, end, 0, 0});
        open_ = true;
        Word& word = words_.back();
        word.text += part;
        word.end = end;
        word.sum += probability;
        ++word.labels;
      }
      if (at == std::string_view::npos) break;
      open_ = false;
      rest.remove_prefix(at + delimiter_.size());
    }
  }

  std::vector<Word> take() { return std::move(words_); }

 private:
  const std::vector<std::string>& names_;
  std::string_view delimiter_;
  std::vector<Word> words_;
  bool open_ = false;
};

struct Cpu {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    const std::int64_t blank = attributes.integer("blank");
    const auto names = static_cast<std::int64_t>(attributes.texts("names").size());
    if (blank < 0 || blank >= names)
      return attributes.refuse("blank", "the number of a name, 0.." + std::to_string(names - 1));
    if (const auto c = sizes["c"]; c && *c != names) {
      return Status::invalid("input 'logits': expected " + std::to_string(names) + " classes, one for each name, got " +
                             std::to_string(*c));
    }
    return {};
  }

  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n"), t = in.size("t"), c = in.size("c"), blank = attributes.integer("blank");
    const bool softmax = attributes.text("activation") == "softmax";
    const std::vector<std::string> names = attributes.texts("names");
    const std::string delimiter = attributes.text("delimiter");
    const auto* const logits = in["logits"].data<T>();
    std::vector<std::vector<Word>> rows(static_cast<std::size_t>(n));
    for (std::int64_t row = 0; row < n && in.has("steps"); ++row) {
      const std::int64_t steps = in["steps"].data<std::int32_t>()[row];
      if (steps < 0 || steps > t) {
        return Status::invalid("input 'steps': expected 0.." + std::to_string(t) + ", got " + std::to_string(steps) +
                               " at " + std::to_string(row));
      }
    }
    context.parallel_for(n, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        const std::int64_t steps = in.has("steps") ? in["steps"].data<std::int32_t>()[row] : t;
        Speller speller(names, delimiter);
        std::int64_t before = blank, begin = 0;
        double probability = 0;
        for (std::int64_t i = 0; i <= steps; ++i) {
          const T* const step = logits + (row * t + i) * c;
          const BestClass best = i < steps ? best_of(step, c) : BestClass{0, blank};
          if (best.label == before) continue;
          if (before != blank) speller.add(before, begin, i, probability);
          before = best.label;
          begin = i;
          if (best.label != blank)
            probability = softmax ? softmax_of_best(step, c, best.value) : static_cast<double>(best.value);
        }
        rows[static_cast<std::size_t>(row)] = speller.take();
      }
    });
    std::size_t most = 0;
    for (const std::vector<Word>& words : rows) most = std::max(most, words.size());
    OPGATE_RETURN_IF_ERROR(out.bind("w", static_cast<std::int64_t>(most)));
    for (std::size_t row = 0; row < rows.size(); ++row) write(rows[row], row, most, out);
    return {};
  }

  static void write(std::vector<Word>& words, std::size_t row, std::size_t most, Outputs& out) {
    auto* const text = out["words"].data<std::string>() + row * most;
    auto* const begin = out["begin"].data<std::int32_t>() + row * most;
    auto* const end = out["end"].data<std::int32_t>() + row * most;
    auto* const score = out["score"].data<float>() + row * most;
    for (std::size_t i = 0; i < most; ++i) {
      Word word = i < words.size() ? std::move(words[i]) : Word{"", 0, 0, 0, 1};
      text[i] = std::move(word.text);
      begin[i] = static_cast<std::int32_t>(word.begin);
      end[i] = static_cast<std::int32_t>(word.end);
      score[i] = static_cast<float>(word.sum / static_cast<double>(word.labels));
    }
    out["count"].data<std::int32_t>()[row] = static_cast<std::int32_t>(words.size());
  }
};

}  // namespace
}  // namespace opgate::ops::ctc_words

OPGATE_CPU_KERNEL(CTCWords, opgate::ops::ctc_words::Cpu)

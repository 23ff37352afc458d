#include "token_spans.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

namespace opgate::ops::token_spans {
namespace {

/// The logits of one task.
constexpr std::int64_t kGrain = 32768;

/// What a class says of a token.
struct Tag {
  std::string_view name;
  bool begins;  ///< a span begins with the token, even behind a token with the same name
  bool inside;  ///< the token belongs to a span
};

Tag tag_of(std::string_view label, std::string_view outside) {
  const bool prefixed = label.starts_with("B-") || label.starts_with("I-");
  const std::string_view name = prefixed ? label.substr(2) : label;
  // What is behind the first hyphen is the name of a span.
  const std::string_view shown = label.substr(label.find('-') + 1);
  return {name, label.starts_with("B-"), shown != outside};
}

struct Best {
  std::int32_t label;
  double score;
};

/// The first of the classes with the greatest logit, and its softmax. Without a finite greatest logit it is class 0,
/// and the score is NaN.
Best best_of(const float* logits, std::int64_t c) {
  std::int64_t best = 0;
  bool nan = false;
  for (std::int64_t i = 0; i < c; ++i) {
    nan = nan || std::isnan(logits[i]);
    if (logits[i] > logits[best]) best = i;
  }
  if (nan || !std::isfinite(logits[best])) return {0, std::numeric_limits<double>::quiet_NaN()};
  double sum = 0;
  for (std::int64_t i = 0; i < c; ++i) sum += std::exp(static_cast<double>(logits[i]) - logits[best]);
  return {static_cast<std::int32_t>(best), 1 / sum};
}

/// The outputs of one row.
struct Row {
  std::int32_t *begin, *end, *label;
  float* score;
};

struct Cpu {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    const auto labels = static_cast<std::int64_t>(attributes.texts("labels").size());
    if (labels == 0) return attributes.refuse("labels", "a label for each class");
    if (const auto c = sizes["c"]; c && *c != labels) {
      return Status::invalid("input 'logits': expected " + std::to_string(labels) +
                             " classes, one for each label, got " + std::to_string(*c));
    }
    return {};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n"), s = in.size("s"), c = in.size("c");
    const std::vector<std::string> labels = attributes.texts("labels");
    const std::string outside = attributes.text("outside");
    std::vector<Tag> tags;
    for (const std::string& label : labels) tags.push_back(tag_of(label, outside));
    const auto* const logits = in["logits"].data<float>();
    const auto* const offsets = in["offsets"].data<std::int32_t>();
    const auto* const special = in["special"].data<std::int64_t>();
    auto* const count = out["count"].data<std::int32_t>();
    auto* const begin = out["begin"].data<std::int32_t>();
    auto* const end = out["end"].data<std::int32_t>();
    auto* const label = out["label"].data<std::int32_t>();
    auto* const score = out["score"].data<float>();
    const std::int64_t cost = std::max<std::int64_t>(1, s * c);
    context.parallel_for(n, std::max<std::int64_t>(1, kGrain / cost), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        const std::int64_t at = row * s;
        count[row] = find(logits + at * c, offsets + 2 * at, special + at, s, tags,
                          {begin + at, end + at, label + at, score + at});
      }
    });
    return {};
  }

 private:
  /// A run of tokens with the same name.
  struct Run {
    std::int32_t begin = 0, end = 0, label = -1;
    double sum = 0;
    int scores = 0;  ///< those that are numbers
  };

  /// Writes the spans of a row and fills what is left. Returns how many there are.
  static std::int32_t find(const float* logits, const std::int32_t* offsets, const std::int64_t* special,
                           std::int64_t s, const std::vector<Tag>& tags, Row to) {
    std::int32_t spans = 0;
    Run run;
    const auto tag = [&](std::int32_t label) { return tags[static_cast<std::size_t>(label)]; };
    const auto close = [&] {
      if (run.label < 0 || !tag(run.label).inside) return;
      to.begin[spans] = run.begin;
      to.end[spans] = run.end;
      to.label[spans] = run.label;
      to.score[spans] = static_cast<float>(run.sum / run.scores);
      ++spans;
    };
    std::int32_t before = -1;
    for (std::int64_t i = 0; i < s; ++i) {
      if (special[i] != 0) continue;
      const Best best =
          best_of(logits + i * static_cast<std::int64_t>(tags.size()), static_cast<std::int64_t>(tags.size()));
      if (before < 0 || tag(best.label).begins || tag(best.label).name != tag(before).name) {
        close();
        run = {.begin = offsets[2 * i], .label = best.label};
      }
      run.end = offsets[2 * i + 1];
      if (!std::isnan(best.score)) {
        run.sum += best.score;
        ++run.scores;
      }
      before = best.label;
    }
    close();
    std::fill(to.begin + spans, to.begin + s, 0);
    std::fill(to.end + spans, to.end + s, 0);
    std::fill(to.label + spans, to.label + s, -1);
    std::fill(to.score + spans, to.score + s, 0.0f);
    return spans;
  }
};

}  // namespace
}  // namespace opgate::ops::token_spans

OPGATE_CPU_KERNEL(TokenSpans, opgate::ops::token_spans::Cpu)

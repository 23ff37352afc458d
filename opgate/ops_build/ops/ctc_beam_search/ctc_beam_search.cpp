#include "ctc_beam_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "detection/best.h"
#include "kernel_toolkit/convert.h"

namespace opgate::ops::ctc_beam_search {
namespace {

constexpr std::int64_t kGrain = 32768;
constexpr std::int32_t kNone = -1;
constexpr float kMost = std::numeric_limits<float>::max();
/// The logarithm of the probability 0.
constexpr double kNever = -std::numeric_limits<double>::infinity();

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// log(exp(a) + exp(b)).
double log_sum(double a, double b) {
  const double most = std::max(a, b);
  return most == kNever ? kNever : most + std::log1p(std::exp(std::min(a, b) - most));
}

/// The classes of one step. Their logarithms lack the denominator of the softmax, which is the same for all texts.
class Step {
 public:
  Step(std::int64_t c, std::int64_t blank, std::int64_t beam_width, bool softmax)
      : values_(at(c)), blank_(blank), wanted_(std::min(c, beam_width + 1)), softmax_(softmax) {}

  /// Returns false if each class has the probability 0.
  template <typename T>
  bool read(const T* step) {
    const auto c = static_cast<std::int64_t>(values_.size());
    if constexpr (std::is_same_v<T, float>) {
      std::copy(step, step + c, values_.begin());
    } else {
      widen(step, values_.data(), c);
    }
    const float low = softmax_ ? -detection::kInfinity : 0.0f;  // it and what is below have the probability 0, and NaN
    for (float& value : values_) value = select(value > low, least(value, kMost), -detection::kInfinity);
    most_ = detection::greatest(values_.data(), c);
    return most_ > -detection::kInfinity;
  }

  double log_of(std::int64_t label) const {
    const double value = static_cast<double>(values_[at(label)]);
    if (softmax_) return value - static_cast<double>(most_);
    return value > 0 ? std::log(value) : kNever;
  }

  /// The logarithm of the denominator.
  double log_denominator() const {
    if (!softmax_) return 0;
    constexpr std::int64_t kBlock = 4096;
    const auto c = static_cast<std::int64_t>(values_.size());
    double sum = 0;
    for (std::int64_t i = 0; i < c; i += kBlock) {
      sum += static_cast<double>(detection::exponentials(values_.data() + i, std::min(kBlock, c - i), most_));
    }
    return std::log(sum);
  }

  /// The best classes without the blank, the best first. One more than the beam is wide: a text may end in one of them,
  /// and then it grows less likely by it than by the others.
  const std::vector<std::int32_t>& best() {
    constexpr std::int64_t kBlock = 512;
    const auto c = static_cast<std::int64_t>(values_.size());
    const float blank = std::exchange(values_[at(blank_)], -detection::kInfinity);
    detection::Best best(wanted_);
    for (std::int64_t i = 0; i < c; i += kBlock) {
      const std::int64_t count = std::min(kBlock, c - i);
      best.see(values_.data() + i, count, detection::greatest(values_.data() + i, count), i);
    }
    labels_.clear();
    for (const detection::Candidate entry : best.sorted()) {
      const std::uint32_t label = detection::index_of(entry);
      if (values_[label] > -detection::kInfinity) labels_.push_back(static_cast<std::int32_t>(label));
    }
    values_[at(blank_)] = blank;
    return labels_;
  }

 private:
  std::vector<float> values_;
  std::vector<std::int32_t> labels_;
  std::int64_t blank_, wanted_;
  bool softmax_;
  float most_ = 0;
};

/// All texts that were in the beam. A text is its parent with one more class, and equal texts are one node.
class Texts {
 public:
  struct Node {
    std::int32_t parent, label;
    std::int32_t child = kNone, sibling = kNone;  ///< the child that came last, and the one that came before it
    std::int32_t place = kNone;                   ///< the place in the beam
  };

  Node& operator[](std::int32_t text) { return nodes_[at(text)]; }

  /// Removes all but the empty text, which is 0.
  void clear() { nodes_.assign(1, Node{kNone, kNone}); }

  std::int32_t child(std::int32_t parent, std::int32_t label) {
    for (std::int32_t child = nodes_[at(parent)].child; child != kNone; child = nodes_[at(child)].sibling) {
      if (nodes_[at(child)].label == label) return child;
    }
    const auto added = static_cast<std::int32_t>(nodes_.size());
    nodes_.push_back({parent, label, kNone, nodes_[at(parent)].child});
    nodes_[at(parent)].child = added;
    return added;
  }

 private:
  std::vector<Node> nodes_;
};

/// A text, and the logarithms of the probabilities of its alignments: of those that end in a blank, of those that end
/// in its last class, and of all.
struct Hypothesis {
  std::int32_t text;
  double blank, label, all;
  std::int32_t grown = kNone;  ///< a class that the text still lacks
  std::int64_t number = 0;     ///< of equal ones the first is better
};

/// The search in one row after the other.
class Search {
 public:
  Search(std::int64_t c, const Attributes& attributes)
      : width_(at(attributes.integer("beam_width"))),
        blank_(attributes.integer("blank")),
        step_(c, blank_, attributes.integer("beam_width"), attributes.text("activation") == "softmax"),
        marks_(at(c), 0) {}

  /// Writes a row's labels [t], and returns how many it has and the score.
  template <typename T>
  std::pair<std::int32_t, float> run(const T* steps, std::int64_t t, std::int64_t c, std::int32_t* labels) {
    texts_.clear();
    beam_.assign(1, Hypothesis{0, 0, kNever, 0});
    double denominators = 0;
    for (std::int64_t i = 0; i < t; ++i) {
      if (!step_.read(steps + i * c)) continue;
      denominators += step_.log_denominator();
      advance();
    }
    std::int32_t count = 0;
    for (std::int32_t text = beam_[0].text; text != 0; text = texts_[text].parent) labels[count++] = texts_[text].label;
    std::reverse(labels, labels + count);
    std::fill(labels + count, labels + t, kNone);
    return {count, static_cast<float>(std::max(beam_[0].all - denominators, -static_cast<double>(kMost)))};
  }

 private:
  void advance() {
    for (std::size_t i = 0; i < beam_.size(); ++i) texts_[beam_[i].text].place = static_cast<std::int32_t>(i);
    next_.clear();
    number_ = 0;
    for (const Hypothesis& each : beam_) add(unchanged(each));
    const std::vector<std::int32_t>& best = step_.best();
    for (const Hypothesis& each : beam_) grow(each, best);
    for (const Hypothesis& each : beam_) texts_[each.text].place = kNone;
    std::sort_heap(next_.begin(), next_.end(), better);
    for (Hypothesis& each : next_) {
      if (each.grown == kNone) continue;
      each.text = texts_.child(each.text, each.grown);
      each.grown = kNone;
    }
    std::swap(beam_, next_);
  }

  /// The same text after the step: a blank or its last class comes, or its parent in the beam grows to it.
  Hypothesis unchanged(const Hypothesis& before) {
    const Texts::Node& text = texts_[before.text];
    Hypothesis after{before.text, before.all + step_.log_of(blank_), kNever, kNever};
    if (text.parent != kNone) {
      const double last = step_.log_of(text.label);
      after.label = before.label + last;
      if (const std::int32_t place = texts_[text.parent].place; place != kNone)
        after.label = log_sum(after.label, alignments(beam_[at(place)], text.label) + last);
    }
    after.all = log_sum(after.blank, after.label);
    return after;
  }

  /// Adds the texts with one more class that aren't in the beam.
  void grow(const Hypothesis& before, const std::vector<std::int32_t>& best) {
    ++mark_;
    for (std::int32_t child = texts_[before.text].child; child != kNone; child = texts_[child].sibling) {
      if (texts_[child].place != kNone) marks_[at(texts_[child].label)] = mark_;
    }
    for (const std::int32_t label : best) {
      if (marks_[at(label)] == mark_) continue;
      const double all = alignments(before, label) + step_.log_of(label);
      const bool added = add({before.text, kNever, all, all, label});
      if (!added && label != texts_[before.text].label) return;  // the next classes are no better
    }
  }

  /// The logarithm of the probability of the alignments behind which a class is one more: a class after itself is one
  /// only behind a blank.
  double alignments(const Hypothesis& before, std::int32_t label) {
    return texts_[before.text].label == label ? before.blank : before.all;
  }

  /// Adds a hypothesis to the next beam if it is among the best. Returns whether it is.
  bool add(Hypothesis added) {
    if (added.all == kNever) return false;
    added.number = number_++;
    if (next_.size() == width_) {
      if (!better(added, next_.front())) return false;
      std::pop_heap(next_.begin(), next_.end(), better);
      next_.pop_back();
    }
    next_.push_back(added);
    std::push_heap(next_.begin(), next_.end(), better);
    return true;
  }

  static bool better(const Hypothesis& a, const Hypothesis& b) {
    return a.all != b.all ? a.all > b.all : a.number < b.number;
  }

  std::size_t width_;
  std::int64_t blank_;
  Step step_;
  Texts texts_;
  std::vector<Hypothesis> beam_, next_;  ///< the best first; a heap whose first is the worst
  std::vector<std::int64_t> marks_;      ///< of each class: the last `mark_` for which a child with it is in the beam
  std::int64_t mark_ = 0, number_ = 0;
};

struct Cpu : Checked {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const std::int64_t n = in.size("n"), t = in.size("t"), c = in.size("c");
    const auto* const logits = in["logits"].data<T>();
    auto* const labels = out["labels"].data<std::int32_t>();
    auto* const count = out["count"].data<std::int32_t>();
    auto* const score = out["score"].data<float>();
    const std::int64_t cost = std::max<std::int64_t>(t * c, 1);
    context.parallel_for(n, std::max<std::int64_t>(1, kGrain / cost), [&](std::int64_t first, std::int64_t last) {
      Search search(c, attributes);
      for (std::int64_t row = first; row < last; ++row)
        std::tie(count[row], score[row]) = search.run(logits + row * t * c, t, c, labels + row * t);
    });
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops::ctc_beam_search

OPGATE_CPU_KERNEL(CTCBeamSearch, opgate::ops::ctc_beam_search::Cpu)

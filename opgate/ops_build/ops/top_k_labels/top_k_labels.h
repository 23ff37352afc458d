#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "detection/nms.h"
#include "kernel_toolkit/op.h"

OPGATE_OP(TopKLabels,
          "<T: f16|bf16|f32> TopKLabels(logits: T[n,c]; k: int=5, activation: {softmax|sigmoid|none}=softmax) "
          "-> (scores: f32[n,k], labels: i32[n,k])",
          "The k best classes of each row, the best first, with their softmax, sigmoid or logit.")

namespace opgate::ops::top_k_labels {

enum class Activation { softmax, sigmoid, none };

inline Activation activation_of(const Attributes& attributes) {
  const std::string name = attributes.text("activation");
  return name == "softmax" ? Activation::softmax : name == "sigmoid" ? Activation::sigmoid : Activation::none;
}

/// A class as one number. The best class is the smallest number: the upper half orders by descending logit with NaN
/// last, the lower half is the label.
using Entry = detection::Candidate;

OPGATE_HOST_DEVICE inline Entry entry_of(float logit, std::uint32_t label) {
  return logit == logit ? detection::candidate(logit, label) : Entry{0xffffffffu} << 32 | label;
}

OPGATE_HOST_DEVICE inline std::uint32_t label_of(Entry entry) { return detection::index_of(entry); }

/// The score of a logit. `most` is the greatest logit of its row, `sum` the sum of exp(logit - most).
OPGATE_HOST_DEVICE inline float score_of(float logit, Activation activation, float most, double sum) {
  if (activation == Activation::none) return logit;
  if (activation == Activation::sigmoid) return static_cast<float>(1 / (1 + exp(-static_cast<double>(logit))));
  return static_cast<float>(exp(static_cast<double>(logit) - static_cast<double>(most)) / sum);
}

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes&, const KnownSizes& sizes) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    if (const auto c = sizes["c"]; c && *c > kMost) {
      return Status::invalid("input 'logits': expected c <= " + std::to_string(kMost) +
                             ", got c = " + std::to_string(*c));
    }
    return {};
  }
};

}  // namespace opgate::ops::top_k_labels

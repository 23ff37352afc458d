#pragma once

#include <string>

#include "kernel_toolkit/op.h"

OPGATE_OP(CTCBeamSearch,
          "<T: f16|bf16|f32> CTCBeamSearch(logits: T[n,t,c]; beam_width: int=10, blank: int=0, "
          "activation: {softmax|none}=softmax) -> (labels: i32[n,t], count: i32[n], score: f32[n])",
          "The likeliest text that a prefix beam search finds, and the logarithm of the probability of its alignments.")

namespace opgate::ops::ctc_beam_search {

/// The `check` of the kernel.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    const std::int64_t beam_width = attributes.integer("beam_width"), blank = attributes.integer("blank");
    if (beam_width < 1 || beam_width > 1000) return attributes.refuse("beam_width", "1..1000");
    if (blank < 0) return attributes.refuse("blank", "0 or more");
    constexpr std::int64_t kMost = 0x7fffffff;
    const auto t = sizes["t"], c = sizes["c"];
    if (c && (blank >= *c || *c > kMost)) {
      return Status::invalid("input 'logits': expected " + std::to_string(blank) +
                             " < c < 2^31 for blank = " + std::to_string(blank) + ", got c = " + std::to_string(*c));
    }
    if (t && *t >= kMost / beam_width) {
      return Status::invalid("input 'logits': expected t < " + std::to_string(kMost / beam_width) +
                             " for beam_width = " + std::to_string(beam_width) + ", got t = " + std::to_string(*t));
    }
    return {};
  }
};

}  // namespace opgate::ops::ctc_beam_search

#pragma once

#include <string>

#include "kernel_toolkit/op.h"

OPGATE_OP(CTCGreedyDecode,
          "<T: f16|bf16|f32> CTCGreedyDecode(logits: T[n,t,c]; blank: int=0, activation: {softmax|none}=softmax) "
          "-> (labels: i32[n,t], count: i32[n], score: f32[n])",
          "The best class of each step without repetitions and blanks, and the mean probability of what is left.")

namespace opgate::ops::ctc_greedy_decode {

/// The `check` of the kernel.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    const std::int64_t blank = attributes.integer("blank");
    if (blank < 0) return Status::invalid("attribute 'blank': expected 0 or more, got " + std::to_string(blank));
    const auto c = sizes["c"];
    if (c && (blank >= *c || *c > 0x7fffffff)) {
      return Status::invalid("input 'logits': expected " + std::to_string(blank) +
                             " < c < 2^31 for blank = " + std::to_string(blank) + ", got c = " + std::to_string(*c));
    }
    return {};
  }
};

}  // namespace opgate::ops::ctc_greedy_decode

#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(CTCWords,
          "<T: f16|bf16|f32> CTCWords(logits: T[n,t,c], steps?: i32[n]; names: str[], blank: int=0, "
          "delimiter: str=\" \", activation: {softmax|none}=softmax) "
          "-> (words: str[n,w<=t], begin: i32[n,w], end: i32[n,w], score: f32[n,w], count: i32[n])",
          "The words that the best classes of the steps spell, when each begins and ends, and its mean probability.")

#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(TokenSpans,
          "TokenSpans(logits: f32[n,s,c], offsets: i32[n,s,2], special: i64[n,s]; labels: str[], outside: str=\"O\") "
          "-> (begin: i32[n,s], end: i32[n,s], label: i32[n,s], score: f32[n,s], count: i32[n])",
          "The spans of a text, such as names, that a classifier of tokens has found.")

#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(DetokenizeStream,
          "DetokenizeStream(ids: i64[n,s], state: i64[n,k], end?: i32[n,1]; tokenizer: str, "
          "skip_special_tokens: bool=true) -> (text: str[n], new_state: i64[n,k])",
          "The texts of tokens that come one by one, each as soon as its characters are whole.")

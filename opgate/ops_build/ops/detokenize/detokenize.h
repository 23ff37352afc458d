#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(Detokenize,
          "Detokenize(ids: i64[n,s], length?: i32[n]; tokenizer: str, skip_special_tokens: bool=true) "
          "-> (text: str[n])",
          "The texts of tokens, as a tokenizer.json of Hugging Face states them.")

#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(Tokenize,
          "Tokenize(text: str[n], pair?: str[n]; tokenizer: str, max_length: int=512, add_special_tokens: bool=true) "
          "-> (ids: i64[n,s<=max_length], mask: i64[n,s], types: i64[n,s], offsets?: i32[n,s,2], special?: i64[n,s], "
          "length?: i32[n])",
          "The tokens of texts, as a tokenizer.json of Hugging Face states them.")

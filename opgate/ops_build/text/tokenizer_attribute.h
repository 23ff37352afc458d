// The tokenizer that an op has in its attribute `tokenizer`.
#pragma once

#include <memory>
#include <string>

#include "op_call/node.h"
#include "tokenizer.h"

namespace opgate::text {

/// Reads the tokenizer once for a node. Its error names the attribute.
inline Status read_tokenizer(const Node& node, std::unique_ptr<Tokenizer>& tokenizer) {
  try {
    tokenizer = std::make_unique<Tokenizer>(node.attributes().text("tokenizer"));
  } catch (const TokenizerError& error) {
    return Status::invalid("attribute 'tokenizer': " + std::string(error.what()));
  }
  return {};
}

}  // namespace opgate::text

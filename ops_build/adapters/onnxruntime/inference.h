// What is known of a node before it runs: its inputs' types, shapes and constants.
#pragma once

#include <deque>
#include <vector>

#include "api.h"
#include "core/node.h"
#include "core/symbols.h"
#include "core/table.h"
#include "value.h"

namespace opgate::ort {

/// Tells the engine the types and shapes of a node's outputs, as far as its inputs tell them.
Status infer_outputs(const Op& op, OrtShapeInferContext* context);

/// The inputs of a node whose kernel is being made.
class NodeInputs {
 public:
  Status read(const OrtKernelInfo* info, const Signature& signature, Device device);

  /// Checks them against the signature and gives the facts that a kernel prepares from. A failure is what every run
  /// would fail with.
  Status bind(const Signature& signature, const Attributes& attributes, NodeFacts& facts) const;

 private:
  Status read_constant(const OrtKernelInfo* info, std::size_t index, const Input& input, Device device);

  std::deque<TypeInfo> infos_;  // hold the names of sizes
  std::deque<std::vector<SymbolicSize>> dims_;
  std::vector<KnownInput<SymbolicSize>> known_;
  std::deque<InputValue> values_;
  std::vector<const Tensor*> constants_;
};

}  // namespace opgate::ort

// What is known about a node before it runs: types, shapes and constants.
#pragma once

#include <deque>
#include <vector>

#include "api.h"
#include "op_call/node.h"
#include "op_call/table.h"
#include "signature/symbols.h"
#include "value.h"

namespace opgate::ort {

/// Tells the engine the types and shapes of the outputs of a node, as far as they follow from the inputs.
Status infer_outputs(const Op& op, OrtShapeInferContext* context);

/// The inputs of a node while the engine loads its model.
class NodeInputs {
 public:
  Status read(const OrtKernelInfo* info, const Signature& signature, Device device);

  /// Checks the inputs against the signature and returns the facts for prepare(). If that fails, every run would fail.
  Status bind(const Signature& signature, const Attributes& attributes, NodeFacts& facts) const;

 private:
  Status read_constant(const OrtKernelInfo* info, std::size_t index, const Input& input, Device device);

  std::deque<TypeInfo> infos_;  // own the names of sizes
  std::deque<std::vector<SymbolicSize>> dims_;
  std::vector<KnownInput<SymbolicSize>> known_;
  std::deque<InputValue> values_;
  std::vector<const Tensor*> constants_;
};

}  // namespace opgate::ort

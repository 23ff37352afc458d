// One node of a model: what it is called with, the shapes of its outputs, and its calls.
#pragma once

#include <optional>

#include "flexbuffer.h"
#include "op_call/invoke.h"
#include "op_call/threads.h"
#include "signature/symbols.h"
#include "tflite/core/c/common.h"

namespace opgate::litert {

/// The op of a custom node by its name in the model, such as "MyOps>MyOp". nullptr if the table doesn't have it.
const Op* op_of(const char* custom_name);

class NodeKernel {
 public:
  /// `read` are the outputs that other nodes or the caller read: LiteRT holds no others. `threads` must outlive the
  /// kernel.
  NodeKernel(const Op& op, const TfLiteNode& node, const TfLiteIntArray& read, Threads& threads);

  /// Checks the inputs, as far as they are known, and prepares the kernel. Gives the outputs their sizes; an output
  /// whose size nobody knows yet gets it when the node runs. LiteRT calls it again when the sizes of inputs change.
  Status prepare(TfLiteContext& context);

  Status invoke(TfLiteContext& context);

  const Op& op() const { return op_; }

 private:
  /// The tensors of the signature: their numbers among the model's tensors, -1 for an absent one.
  using Places = std::vector<int>;

  Status read_attributes();
  Status read_places(const TfLiteIntArray& tensors, const std::vector<std::string>& lengths, bool variadic,
                     Places& places) const;
  Status check_outputs(TfLiteContext& context, SymbolicWalk& walk);

  const Op& op_;
  Threads& threads_;
  Status made_;  // what went wrong in the constructor
  Options options_;
  Attributes attributes_;
  Places inputs_, outputs_;
  KernelCache kernels_{2};
};

}  // namespace opgate::litert

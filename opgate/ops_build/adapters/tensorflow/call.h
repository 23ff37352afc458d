// The kernel of one node, and its calls.
#pragma once

#include "definition.h"
#include "op_call/invoke.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace opgate::tf {

/// Runs any op of the table: the one whose name the node has.
class NodeKernel : public api::OpKernel {
 public:
  explicit NodeKernel(api::OpKernelConstruction* construction);

  void Compute(api::OpKernelContext* context) override;

 private:
  Status read(api::OpKernelConstruction& construction);
  Status run(api::OpKernelContext& context);

  /// In eager mode one kernel serves all calls with the same attributes, whatever the dims.
  static constexpr std::size_t kPrepared = 16;

  const Definition* definition_ = nullptr;
  Attributes attributes_;
  std::vector<std::size_t> input_lengths_, output_lengths_;
  KernelCache kernels_{kPrepared};
};

}  // namespace opgate::tf

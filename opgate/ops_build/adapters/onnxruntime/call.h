// The kernel of one node, and its calls.
#pragma once

#include "api.h"
#include "op_call/invoke.h"
#include "op_call/op_times.h"

namespace opgate::ort {

class NodeKernel {
 public:
  NodeKernel(const Op& op, Device device) : op_(op), device_(device), kernels_(kPrepared) {}

  /// Reads the attributes, checks the inputs as far as they are known before the run, and prepares the kernel. If that
  /// fails, every run would fail, so the engine refuses the model.
  Status prepare(const OrtKernelInfo* info);

  Status compute(OrtKernelContext* context);

  const Op& op() const { return op_; }

  /// How long its calls take. It is there once the kernel is prepared.
  NodeTimes& times() const { return *times_; }

 private:
  Status run(OrtKernelContext* context);

  /// The static sizes of a node are the same in every run, so one prepared kernel is enough. A model that states a
  /// wrong size makes the cache prepare another.
  static constexpr std::size_t kPrepared = 2;

  const Op& op_;
  Device device_;
  Attributes attributes_;
  KernelCache kernels_;
  std::shared_ptr<NodeTimes> times_;
};

}  // namespace opgate::ort

// One node's kernel, and a call of it.
#pragma once

#include "api.h"
#include "core/invoke.h"

namespace opgate::ort {

class NodeKernel {
 public:
  NodeKernel(const Op& op, Device device) : op_(op), device_(device), kernels_(kPrepared) {}

  /// Reads the attributes, checks what is known of the inputs before the run against the signature, and has the kernel
  /// prepare. What fails is what every run would fail with.
  Status prepare(const OrtKernelInfo* info);

  Status compute(OrtKernelContext* context);

 private:
  /// Sizes that the graph states are the same in every run, so one kernel is prepared. Only where a model states them
  /// wrongly is there another.
  static constexpr std::size_t kPrepared = 2;

  const Op& op_;
  Device device_;
  Attributes attributes_;
  KernelCache kernels_;
};

}  // namespace opgate::ort

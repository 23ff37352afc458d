// Prepared kernels that are kept from call to call.
#pragma once

#include <list>
#include <mutex>

#include "table.h"

namespace opgate {

/// Prepared kernels of one op on one device, each with the node that it was prepared for. ONNX Runtime's adapter and
/// TensorRT's have a cache for each node. PyTorch has no nodes: its adapter has a cache for each op. Any thread may
/// call it.
class KernelCache {
 public:
  /// Holds at most `capacity` kernels. A further one replaces the one that was used the longest ago.
  explicit KernelCache(std::size_t capacity) : capacity_(capacity) {}

  /// Sets `kernel` to one that can run a call with these attributes and facts. Prepares one if there is none. nullptr
  /// if the op's kernel doesn't prepare. The caller holds the pointer while the kernel runs.
  Status find(const Op& op, Device device, const Attributes& attributes, const NodeFacts& facts,
              std::shared_ptr<const void>& kernel);

 private:
  struct Entry {
    Node node;
    std::shared_ptr<const void> kernel;
  };

  std::size_t capacity_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // the most recently used first
};

}  // namespace opgate

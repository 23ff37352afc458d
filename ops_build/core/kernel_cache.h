// Prepared kernels, kept from call to call.
#pragma once

#include <list>
#include <mutex>

#include "table.h"

namespace opgate {

/// Kernels of one op on one device, each with the node that it was prepared for. An engine whose nodes are objects keeps
/// one of these a node; PyTorch, which has none, one an op. Any thread may call it.
class KernelCache {
 public:
  /// Holds at most `capacity` kernels. Where another one is needed, the one that was used the longest ago goes.
  explicit KernelCache(std::size_t capacity) : capacity_(capacity) {}

  /// A kernel that can run a call of these facts, prepared for them if there is none yet. Null for a kernel that doesn't
  /// prepare. The caller keeps it as long as it runs.
  Status find(const Op& op, Device device, const Attributes& attributes, const NodeFacts& facts,
              std::shared_ptr<const void>& kernel);

 private:
  struct Entry {
    Node node;
    std::shared_ptr<const void> kernel;
  };

  std::size_t capacity_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // the last used one first
};

}  // namespace opgate

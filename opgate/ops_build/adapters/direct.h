// What the adapters share that call an op without a graph, from NumPy and from TVM-FFI: threads, scratch memory and
// prepared kernels.
#pragma once

#include <cstdlib>
#include <memory>
#include <vector>

#include "op_call/invoke.h"

namespace opgate {

/// An engine of its own for each call.
class DirectEngine : public Engine {
 public:
  /// A call uses `threads` threads, the caller's own among them. They are shared by all calls of the process.
  explicit DirectEngine(std::size_t threads) : threads_(threads) {}

  void parallel_for(std::size_t tasks, void (*task)(void* user, std::size_t i), void* user) override;
  void* scratch(std::size_t bytes) override;

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  std::size_t threads_;
  std::vector<std::unique_ptr<void, Free>> scratch_;
};

/// Memory that is aligned to 64 bytes. Throws std::bad_alloc.
void* aligned_memory(std::size_t bytes);

/// The prepared kernels of an op, nullptr if its kernel doesn't prepare. A call has no node that could hold them.
KernelCache* kernels_of(const Op& op, Device device = Device::cpu);

}  // namespace opgate

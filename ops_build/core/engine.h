// What an engine lends to one call of a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dtype.h"
#include "status.h"

namespace opgate {

/// Every adapter implements it once.
class Engine {
 public:
  virtual ~Engine() = default;

  /// Memory for output `index` of these dims; nullptr in `data` when nobody asked for the output. For `str` it is the
  /// array of std::string that the engine reads after the call.
  virtual Status allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) = 0;

  /// Runs task(user, i) for each i in [0, tasks) on the engine's own threads. Returns when all have ended.
  virtual void parallel_for(std::size_t tasks, void (*task)(void* user, std::size_t i), void* user) = 0;

  /// Memory on the kernel's device that lasts until the kernel returns, aligned to 64 bytes. Throws std::bad_alloc.
  virtual void* scratch(std::size_t bytes) = 0;

  /// The block for the workspace that a kernel states (workspace.h), aligned to 256 bytes, where the engine has measured
  /// the workspace beforehand. Empty: each piece of the workspace comes from scratch().
  virtual std::span<char> workspace() { return {}; }

  /// Which of several devices of a kind the call runs on.
  virtual int ordinal() { return 0; }

  /// The CUDA stream of the call; nullptr on the CPU.
  virtual void* stream() { return nullptr; }

  // A kernel on a device may find a size that nobody knows before (`v<=n` in the signature). It writes the size to the
  // device's memory and doesn't wait. So the outputs are made at their upper bound; their elements lie packed as the
  // exact dims say, at the beginning of that memory.

  /// Memory on the device for `count` such sizes.
  virtual Status allocate_sizes(std::size_t count, std::int64_t** sizes);

  /// Like allocate_output, for an output that has at most these dims.
  virtual Status allocate_bounded(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data);

  /// Whether the engine takes these outputs with their padding, and the sizes in the device's memory, as they are. Then
  /// nobody waits, the call can be captured in a CUDA graph, and the two functions below are not called.
  virtual bool takes_padded_outputs() const { return false; }

  /// Waits for the kernel and reads the sizes.
  virtual Status read_sizes(std::span<std::int64_t> sizes);

  /// Gives an output that allocate_bounded made its exact dims.
  virtual Status trim(std::size_t index, DType dtype, std::span<const std::int64_t> dims);
};

}  // namespace opgate

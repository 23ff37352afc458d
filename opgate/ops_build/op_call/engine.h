// The engine, as one call of a kernel uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "signature/dtype.h"
#include "signature/status.h"

namespace opgate {

/// Each adapter implements it.
class Engine {
 public:
  virtual ~Engine() = default;

  /// Sets `data` to memory for output `index` with these dims, or to nullptr if nobody wants the output. For `str` the
  /// memory is an array of std::string that the engine reads after the call.
  virtual Status allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) = 0;

  /// Runs task(user, i) for each i in [0, tasks) on the engine's threads. Returns when all tasks have ended.
  virtual void parallel_for(std::size_t tasks, void (*task)(void* user, std::size_t i), void* user) = 0;

  /// Whether a kernel's work is split into as many pieces as there can be. A kernel must compute the same with any
  /// pieces, and tests run it so.
  virtual bool splits_finely() const { return false; }

  /// Memory on the kernel's device until the kernel returns, aligned to 64 bytes. Throws std::bad_alloc.
  virtual void* scratch(std::size_t bytes) = 0;

  /// The memory for the workspace of the kernel (workspace.h), aligned to 256 bytes, if the engine has measured the
  /// workspace beforehand. If it is empty, each piece of the workspace comes from scratch().
  virtual std::span<char> workspace() { return {}; }

  /// The number of the device that the call runs on, where there are several.
  virtual int ordinal() { return 0; }

  /// Whether a kernel may be prepared for the sizes of this call. If not, prepare() sees no size, and one kernel serves
  /// calls of all sizes.
  virtual bool prepares_for_sizes() const { return true; }

  /// The CUDA stream of the call; nullptr on the CPU.
  virtual void* stream() { return nullptr; }

  // A kernel on a GPU may find a size that nobody knows before (`v<=n` in the signature). It writes the size to device
  // memory. Nobody on the host knows it then, so the outputs get memory for their upper bound. Their elements lie at
  // the beginning of that memory, packed with the exact dims.

  /// Sets `sizes` to memory on the device for `count` such sizes.
  virtual Status allocate_sizes(std::size_t count, std::int64_t** sizes);

  /// As allocate_output, for an output that has these dims at most.
  virtual Status allocate_bounded(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data);

  /// Whether the engine takes these outputs with their padding and the sizes in device memory. Then nobody waits for
  /// the kernel, a CUDA graph can capture the call, and the two functions below are not called.
  virtual bool takes_padded_outputs() const { return false; }

  /// Waits for the kernel and reads the sizes.
  virtual Status read_sizes(std::span<std::int64_t> sizes);

  /// Gives its exact dims to an output for which allocate_bounded gave memory.
  virtual Status trim(std::size_t index, DType dtype, std::span<const std::int64_t> dims);
};

}  // namespace opgate

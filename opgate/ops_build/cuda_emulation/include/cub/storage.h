// CUB's rule for temporary memory: a call without memory returns how many bytes it needs.
#pragma once

#include "cuda_runtime.h"

namespace emulation {

/// Runs `body`. It first overwrites all of the memory, as CUB may do.
template <typename Body>
cudaError_t with_storage(void* storage, std::size_t& bytes, std::int64_t wanted, cudaStream_t stream, Body body) {
  if (!storage) {
    bytes = static_cast<std::size_t>(wanted);
    return cudaSuccess;
  }
  if (bytes < static_cast<std::size_t>(wanted)) return refused(cudaErrorInvalidValue);
  submit(stream, [=, bytes = bytes] {
    with_device_memory([&] {
      std::memset(storage, 0xfb, bytes);
      body();
    });
  });
  return cudaSuccess;
}

}  // namespace emulation

// CUB's way of asking for memory: without any it says how much it wants.
#pragma once

#include "cuda_runtime.h"

namespace emulation {

/// All of the memory is written to, as CUB may.
template <typename Body>
cudaError_t with_storage(void* storage, std::size_t& bytes, std::int64_t wanted, cudaStream_t stream, Body&& body) {
  if (!storage) {
    bytes = static_cast<std::size_t>(wanted);
    return cudaSuccess;
  }
  check_stream(stream);
  if (bytes < static_cast<std::size_t>(wanted)) return refused(cudaErrorInvalidValue);
  with_device_memory([&] {
    std::memset(storage, 0xfb, bytes);
    body();
  });
  return cudaSuccess;
}

}  // namespace emulation

// What adapters of engines that run on CUDA share, on the host's side.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "status.h"

namespace opgate::cuda {

/// A CUDA error as a Status; `doing` says what failed.
inline Status status(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return {};
  return Status::internal(std::string("CUDA, ") + doing + ": " + cudaGetErrorString(error));
}

/// Copies from the device to the host once the stream has come there.
inline Status read(void* host, const void* device, std::size_t bytes, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  OPGATE_RETURN_IF_ERROR(status(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, on), "copying"));
  return status(cudaStreamSynchronize(on), "waiting for a kernel");
}

/// Copies on the device, in the stream's order.
inline Status copy(void* to, const void* from, std::size_t bytes, void* stream) {
  if (bytes == 0) return {};
  const auto on = static_cast<cudaStream_t>(stream);
  return status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, on), "copying");
}

}  // namespace opgate::cuda

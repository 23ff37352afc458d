// CUDA as host code uses it: in the adapters of engines that run on CUDA, and in prepare() of kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <span>
#include <string>
#include <utility>

#include "signature/status.h"

namespace opgate::cuda {

/// The Status of a CUDA error. `doing` says what failed. CUDA keeps the error until somebody asks for the last one.
/// This does so, because the next good launch would report it otherwise.
inline Status status(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return Status::internal(std::string("CUDA, ") + doing + ": " + cudaGetErrorString(error));
}

/// Copies from the device to the host, after all work that the stream has so far, and waits for it.
inline Status read(void* host, const void* device, std::size_t bytes, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  OPGATE_RETURN_IF_ERROR(status(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, on), "copying"));
  return status(cudaStreamSynchronize(on), "waiting for a kernel");
}

/// Copies on the device, after all work that the stream has so far. Doesn't wait.
inline Status copy(void* to, const void* from, std::size_t bytes, void* stream) {
  if (bytes == 0) return {};
  const auto on = static_cast<cudaStream_t>(stream);
  return status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, on), "copying");
}

/// The number of the device that this thread uses; 0 where there is no device.
inline int current_device() {
  int device = 0;
  return status(cudaGetDevice(&device), "asking for the device").ok() ? device : 0;
}

/// Selects a device for this thread, and selects the previous one again when it is destroyed.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : before_(current_device()), changed_(device != before_) {
    if (changed_) static_cast<void>(status(cudaSetDevice(device), "changing the device"));
  }
  ~DeviceGuard() {
    if (changed_) static_cast<void>(status(cudaSetDevice(before_), "changing the device"));
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_;
  bool changed_;
};

/// An array in device memory. A kernel fills it in prepare() and reads it in every call.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() {
    if (data_) static_cast<void>(status(cudaFree(data_), "freeing memory"));
  }

  /// Copies the values to the current device and waits until they are there.
  Status assign(std::span<const T> values) {
    if (values.empty()) return {};
    void* memory = nullptr;
    OPGATE_RETURN_IF_ERROR(status(cudaMalloc(&memory, values.size_bytes()), "allocating memory for a prepared kernel"));
    std::swap(data_, memory);
    if (memory) static_cast<void>(status(cudaFree(memory), "freeing memory"));
    size_ = values.size();
    OPGATE_RETURN_IF_ERROR(status(cudaMemcpy(data_, values.data(), values.size_bytes(), cudaMemcpyHostToDevice),
                                  "copying the data of a prepared kernel"));
    // cudaMemcpy returns once it has staged the values. The kernel's stream doesn't wait for the default stream.
    return status(cudaStreamSynchronize(nullptr), "copying the data of a prepared kernel");
  }

  const T* data() const { return static_cast<const T*>(data_); }
  std::size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace opgate::cuda

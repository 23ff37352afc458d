// What calls through TVM-FFI need of CUDA. Only libraries with CUDA kernels have it, and the others are compiled
// without CUDA's headers.
#pragma once

#include <cstddef>

#include "signature/status.h"

namespace opgate::tvm {

struct CudaFunctions {
  /// Memory of a device, in the order of the stream. Throws std::bad_alloc, and
  /// std::runtime_error if there is no such device.
  void* (*allocate)(std::size_t bytes, void* stream);
  /// Gives it back, in the order of the stream.
  void (*release)(void* memory, void* stream);
  /// Gives it back when the device has done all of its work: nobody knows who has used it.
  void (*release_in_the_end)(void* memory);
  /// Waits for the stream, and copies to the host.
  Status (*read)(void* host, const void* device, std::size_t bytes, void* stream);
  /// Copies on the device, in the order of the stream.
  Status (*copy)(void* to, const void* from, std::size_t bytes, void* stream);
  /// Selects a device for this thread. Returns the one before.
  int (*select)(int device);
};

/// nullptr in a library without CUDA kernels.
inline const CudaFunctions* cuda_functions = nullptr;

}  // namespace opgate::tvm

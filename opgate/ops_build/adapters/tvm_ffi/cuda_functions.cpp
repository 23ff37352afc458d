#include "cuda_functions.h"

#include <new>
#include <stdexcept>

#include "kernel_toolkit/cuda.h"

namespace opgate::tvm {
namespace {

void* allocate(std::size_t bytes, void* stream) {
  void* memory = nullptr;
  const cudaError_t error = cudaMallocAsync(&memory, bytes, static_cast<cudaStream_t>(stream));
  const Status status = cuda::status(error, "allocating memory");
  if (error == cudaErrorMemoryAllocation) throw std::bad_alloc();
  if (!status.ok()) throw std::runtime_error(status.message());
  return memory;
}

void release(void* memory, void* stream) {
  static_cast<void>(cuda::status(cudaFreeAsync(memory, static_cast<cudaStream_t>(stream)), "freeing memory"));
}

void release_in_the_end(void* memory) { static_cast<void>(cuda::status(cudaFree(memory), "freeing memory")); }

int select(int device) {
  const int before = cuda::current_device();
  if (device != before) static_cast<void>(cuda::status(cudaSetDevice(device), "changing the device"));
  return before;
}

constexpr CudaFunctions kFunctions{&allocate, &release, &release_in_the_end, &cuda::read, &cuda::copy, &select};

[[maybe_unused]] const bool registered = (cuda_functions = &kFunctions, true);

}  // namespace
}  // namespace opgate::tvm

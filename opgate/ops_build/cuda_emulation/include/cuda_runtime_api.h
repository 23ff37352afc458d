// The host side of the emulation: memory, copies, streams, events and launches.
#pragma once

#include "emulation.h"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorStreamCaptureUnsupported = 900
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
enum cudaDeviceAttr {
  cudaDevAttrL2CacheSize = 38,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76
};
using cudaEvent_t = struct CUevent_st*;
inline constexpr unsigned cudaStreamNonBlocking = 1;

/// The work that a graph has captured.
struct CUgraph_st {
  std::vector<std::function<void()>> work;
};
using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraph_st*;

/// A stream does its work at once, except while it captures a graph.
struct CUstream_st {
  cudaGraph_t captured = nullptr;
};
using cudaStream_t = CUstream_st*;

namespace emulation {

inline cudaError_t last_error = cudaSuccess;

inline cudaError_t refused(cudaError_t error) { return last_error = error; }

/// Fails for the default stream: work there doesn't wait for the work of the op's stream, so it is a mistake.
inline void check_stream(cudaStream_t stream) {
  if (!stream) fail("work on the default stream");
}

/// The number of streams that capture a graph. Meanwhile no memory can be allocated or freed, and nothing waits.
inline int captures = 0;

/// Does the work, or captures it if the stream captures a graph.
inline void submit(cudaStream_t stream, std::function<void()> work) {
  check_stream(stream);
  if (stream->captured) {
    stream->captured->work.push_back(std::move(work));
  } else {
    work();
  }
}

struct Configuration {
  dim3 grid, block;
  cudaStream_t stream;
};

inline Configuration configuration(dim3 grid, dim3 block, std::size_t shared = 0, cudaStream_t stream = nullptr) {
  if (shared) fail("dynamic shared memory is not emulated");
  return {grid, block, stream};
}

template <typename Kernel, typename... Arguments>
void launch(const Configuration& with, Kernel kernel, Arguments... arguments) {
  const dim3 grid = with.grid, block = with.block;
  const auto threads = std::uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > kMostThreads || block.z > 64 || !grid.x || !grid.y || !grid.z || grid.x > 0x7fffffffu ||
      grid.y > 0xffffu || grid.z > 0xffffu) {
    last_error = cudaErrorInvalidConfiguration;
    return;
  }
  submit(with.stream, [grid, block, kernel, values = std::tuple<Arguments...>(arguments...)] {
    const char* const seed = std::getenv("EMULATION_SEED");
    const std::function<void()> thread = [&] { std::apply(kernel, values); };
    gridDim = grid;
    blockDim = block;
    with_device_memory([&] {
      for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z) {
        for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y) {
          for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
            run_block(block, seed ? static_cast<unsigned>(std::atoi(seed)) : 0, thread);
          }
        }
      }
    });
  });
}

}  // namespace emulation

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorInvalidConfiguration ? "invalid configuration argument" : "an error";
}
inline cudaError_t cudaGetLastError() { return std::exchange(emulation::last_error, cudaSuccess); }

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const bool captures = stream ? stream->captured != nullptr : emulation::captures > 0;
  return captures ? emulation::refused(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  emulation::check_stream(stream);
  stream->captured = new CUgraph_st;
  ++emulation::captures;
  return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = std::exchange(stream->captured, nullptr);
  --emulation::captures;
  return cudaSuccess;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CUgraph_st(*graph);
  return cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  for (const auto& work : executable->work) emulation::submit(stream, work);
  return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return delete executable, cudaSuccess; }

// There is one device.
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : emulation::refused(cudaErrorInvalidValue);
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  // The device is an H100.
  *value = attribute == cudaDevAttrComputeCapabilityMajor   ? 9
           : attribute == cudaDevAttrComputeCapabilityMinor ? 0
                                                            : 1 << 20;
  return cudaSuccess;
}

inline cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  if (emulation::captures) return emulation::refused(cudaErrorStreamCaptureUnsupported);
  *memory = emulation::allocate(bytes);
  return *memory ? cudaSuccess : emulation::refused(cudaErrorMemoryAllocation);
}
inline cudaError_t cudaFree(void* memory) {
  if (emulation::captures) return emulation::refused(cudaErrorStreamCaptureUnsupported);
  if (memory) emulation::free(memory);
  return cudaSuccess;
}
enum cudaMemPoolAttr { cudaMemPoolAttrReleaseThreshold };
using cudaMemPool_t = void*;
inline cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) { return *pool = nullptr, cudaSuccess; }
inline cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
inline cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t stream) {
  emulation::check_stream(stream);
  if (stream->captured) return emulation::refused(cudaErrorStreamCaptureUnsupported);  // a graph would own the memory
  *memory = emulation::allocate(bytes);
  return *memory ? cudaSuccess : emulation::refused(cudaErrorMemoryAllocation);
}
inline cudaError_t cudaFreeAsync(void* memory, cudaStream_t) {
  emulation::free(memory);
  return cudaSuccess;
}

inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  emulation::check_stream(stream);
  if (bytes && !emulation::on_device(to, bytes)) return emulation::refused(cudaErrorInvalidValue);
  emulation::submit(stream, [=] { emulation::with_device_memory([&] { std::memset(to, value, bytes); }); });
  return cudaSuccess;
}
/// Whether the memory is where the kind of the copy says.
inline bool copy_fits(const void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const bool to_device = kind != cudaMemcpyDeviceToHost, from_device = kind != cudaMemcpyHostToDevice;
  return !bytes || (emulation::on_device(to, bytes) == to_device && emulation::on_device(from, bytes) == from_device);
}
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (emulation::captures) return emulation::refused(cudaErrorStreamCaptureUnsupported);
  if (!copy_fits(to, from, bytes, kind)) return emulation::refused(cudaErrorInvalidValue);
  emulation::with_device_memory([&] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream) {
  if (!copy_fits(to, from, bytes, kind)) return emulation::refused(cudaErrorInvalidValue);
  emulation::submit(stream, [=] { emulation::with_device_memory([&] { std::memcpy(to, from, bytes); }); });
  return cudaSuccess;
}

// Events measure no time.
inline cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = nullptr, cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  return *milliseconds = 0, cudaSuccess;
}

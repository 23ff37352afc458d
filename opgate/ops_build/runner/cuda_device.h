// Memory and streams of a GPU, and what the runner does there alone: graphs, calls side by side, and times.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "kernel_toolkit/cuda.h"
#include "prepared_call.h"

namespace opgate::runner {

inline void must(cudaError_t error, const char* doing) { must(cuda::status(error, doing)); }

/// Memory on a stream.
struct Cuda {
  static constexpr Device kDevice = Device::cuda;
  using Stream = cudaStream_t;

  // compute-sanitizer knows the exact size of memory from cudaMalloc only.
  static void* allocate(std::size_t bytes, std::size_t, bool exact, Stream stream) {
    void* memory = nullptr;
    if ((exact ? cudaMalloc(&memory, bytes) : cudaMallocAsync(&memory, bytes, stream)) != cudaSuccess) {
      (void)cudaGetLastError();
      throw std::bad_alloc();
    }
    return memory;
  }
  static void release(void* memory, bool exact, Stream stream) {
    (void)(exact ? cudaFree(memory) : cudaFreeAsync(memory, stream));
  }
  static void fill(void* to, int value, std::size_t bytes, Stream stream) {
    must(cudaMemsetAsync(to, value, bytes, stream), "filling memory");
  }
  static void write(void* to, const void* from, std::size_t bytes, Stream stream) {
    must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "copying an input");
  }
  static Status read(void* to, const void* from, std::size_t bytes, Stream stream) {
    return cuda::read(to, from, bytes, stream);
  }
  static Status wait(Stream stream) { return cuda::status(cudaStreamSynchronize(stream), "waiting for a kernel"); }
};

/// A stream that doesn't wait for other streams.
class Stream {
 public:
  Stream() { must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { (void)cudaStreamDestroy(stream_); }

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// The work of some calls, captured from a stream.
class Graph {
 public:
  /// Captures what `call` launches on the stream.
  template <typename Function>
  static Status capture(cudaStream_t stream, const Function& call, Graph& graph) {
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
    const Status status = call();
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph.graph_);
    if (!status.ok() || ended != cudaSuccess) (void)cudaGetLastError();  // a failed capture leaves an error behind
    OPGATE_RETURN_IF_ERROR(status);
    OPGATE_RETURN_IF_ERROR(cuda::status(ended, "capturing the call in a graph"));
    return cuda::status(cudaGraphInstantiate(&graph.executable_, graph.graph_, 0), "instantiating the graph");
  }

  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (executable_) (void)cudaGraphExecDestroy(executable_);
    if (graph_) (void)cudaGraphDestroy(graph_);
  }

  Status launch(cudaStream_t stream) const {
    return cuda::status(cudaGraphLaunch(executable_, stream), "launching the graph");
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

/// The median time of `runs` calls in milliseconds, measured by events.
template <typename Run>
double median_time(int runs, cudaStream_t stream, Run&& run) {
  cudaEvent_t start, stop;
  must(cudaEventCreate(&start), "making an event");
  must(cudaEventCreate(&stop), "making an event");
  std::vector<float> times(static_cast<std::size_t>(runs));
  for (float& time : times) {
    must(cudaEventRecord(start, stream), "recording an event");
    must(run());
    must(cudaEventRecord(stop, stream), "recording an event");
    must(cudaEventSynchronize(stop), "waiting for a kernel");
    must(cudaEventElapsedTime(&time, start, stop), "reading the time");
  }
  must(cudaEventDestroy(start), "freeing an event");
  must(cudaEventDestroy(stop), "freeing an event");
  std::ranges::sort(times);
  return times[times.size() / 2];
}

/// Runs the call from a graph, twice: the kernels must set all that they need in each launch.
inline Status replay(PreparedCall<Cuda>& call) {
  Graph graph;
  OPGATE_RETURN_IF_ERROR(Graph::capture(call.stream(), [&] { return call.run(); }, graph));
  for (int launch = 0; launch < 2; ++launch) {
    call.engine().clear();
    OPGATE_RETURN_IF_ERROR(graph.launch(call.stream()));
    call.wait();
  }
  return {};
}

/// Runs the call together with a second one on another stream. Both use the same kernel object.
inline Status run_beside(PreparedCall<Cuda>& call, PreparedCall<Cuda>& second) {
  OPGATE_RETURN_IF_ERROR(second.run());
  call.wait();
  second.wait();
  call.engine().clear();
  second.engine().clear();
  for (int round = 0; round < 3; ++round) {
    OPGATE_RETURN_IF_ERROR(call.run());
    OPGATE_RETURN_IF_ERROR(second.run());
  }
  call.wait();
  second.wait();
  OPGATE_RETURN_IF_ERROR(second.finish());
  return {};
}

/// The time of a call in milliseconds, from a graph of many calls. The calls use as many sets of memory in turn as it
/// takes to fill the L2 cache twice.
inline Status time_call(const Op& op, const CaseToRun& wanted, const Attributes& attributes, const CallOptions& options,
                        int runs, KernelCache& kernels, PreparedCall<Cuda>& first, double& milliseconds) {
  constexpr std::size_t kFewestCalls = 20, kMostSets = 64;
  constexpr double kMostMilliseconds = 1000;
  int cache = 0;
  must(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, cuda::current_device()), "asking for the cache's size");
  const std::size_t bytes = std::max<std::size_t>(first.bytes(), 1);
  const std::size_t sets = std::clamp<std::size_t>(2 * static_cast<std::size_t>(cache) / bytes + 1, 2, kMostSets);
  std::vector<std::unique_ptr<PreparedCall<Cuda>>> others;
  for (std::size_t i = 1; i < sets; ++i) {
    others.push_back(std::make_unique<PreparedCall<Cuda>>(op, wanted, attributes, options, kernels, first.stream()));
    OPGATE_RETURN_IF_ERROR(others.back()->run());
  }
  const double once = median_time(1, first.stream(), [&] { return first.run(); });
  const auto affordable = static_cast<std::size_t>(kMostMilliseconds / runs / std::max(once, 1e-3));
  const std::size_t calls = std::clamp<std::size_t>(affordable, 1, (kFewestCalls + sets - 1) / sets * sets);
  const auto run_all = [&]() -> Status {
    for (std::size_t i = 0; i < calls; ++i) {
      PreparedCall<Cuda>& call = i % sets ? *others[i % sets - 1] : first;
      OPGATE_RETURN_IF_ERROR(call.run());
    }
    return {};
  };
  Graph graph;
  OPGATE_RETURN_IF_ERROR(Graph::capture(first.stream(), run_all, graph));
  OPGATE_RETURN_IF_ERROR(graph.launch(first.stream()));  // the first launch uploads the graph
  first.wait();
  const auto launch = [&] { return graph.launch(first.stream()); };
  milliseconds = median_time(runs, first.stream(), launch) / static_cast<double>(calls);
  return {};
}

/// Bytes per second, by the median time of copies of 1 GiB.
inline double copy_bandwidth(cudaStream_t stream) {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  const Memory<Cuda> from(kBytes, 0, {}, stream), to(kBytes, 0, {}, stream);
  const double milliseconds =
      median_time(20, stream, [&] { return cuda::copy(to.data(), from.data(), kBytes, stream); });
  return 2.0 * static_cast<double>(kBytes) / (milliseconds / 1e3);
}

/// Lets the device keep memory that was freed for later. Otherwise each wait gives it back.
inline void keep_memory() {
  cudaMemPool_t pool;
  std::uint64_t all = UINT64_MAX;
  must(cudaDeviceGetDefaultMemPool(&pool, 0), "finding the memory pool");
  must(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "setting up the memory pool");
}

}  // namespace opgate::runner

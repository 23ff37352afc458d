// Runs CUDA kernels without an engine. It reads cases from standard input and writes the result of each to standard
// output, in the format of runner/cases_file.py. Both may be pipes or files.
//
//   opgate_gpu_runner [OPTIONS] < cases > results
//   opgate_gpu_runner --table       prints the op table as JSON
//   opgate_gpu_runner --bandwidth   prints how many bytes a copy on the device reads and writes per second
//
// Kernels run on a stream that doesn't wait for other streams. Before a run, outputs and scratch memory are filled with
// a pattern, and behind each of them is a zone that must keep the pattern. Inputs must not change.
//
//   --unaligned        puts all tensors one element behind an aligned address
//   --exact            allocates exactly the bytes of each tensor, without zones and without the pattern, so that
//                      compute-sanitizer sees each access that is out of bounds and each read of uninitialized memory
//   --padded           takes padded outputs (engine.h) and reads the sizes after the call
//   --graph            captures the call in a CUDA graph and launches the graph twice; the outputs are those of the
//                      second launch. Implies --padded.
//   --streams          runs the case on two streams at once, with one kernel object; both must compute the same bits.
//                      Implies --padded.
//   --written          runs the case once more on memory that is filled with another pattern; both must compute
//                      the same bits, so that no output shows what lay in its memory before
//   --time RUNS        launches a graph of many calls RUNS times and reports the median time of a call, and no
//                      outputs. The calls use different memory in turn, so that the inputs of a call are not in the L2
//                      cache. A slow call is repeated less often. Implies --padded.
//   --plugins LIBRARY  calls the TensorRT plugins of the ops instead of the kernels
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "caller.h"
#include "kernel_toolkit/cuda.h"

namespace opgate {
namespace {

using namespace runner;
using runner::must;

void must(cudaError_t error, const char* doing) { runner::must(cuda::status(error, doing)); }

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

using DeviceMemory = Memory<Cuda>;
using DeviceCall = PreparedCall<Cuda>;

struct Options : CallOptions {
  Options() { call = call_kernel<Cuda>; }

  int timed_runs = 0;
  bool graph = false, streams = false, written = false;
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
Status replay(DeviceCall& call) {
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
Status run_beside(DeviceCall& call, DeviceCall& second) {
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

/// Runs the call again, on memory with another pattern. Both runs must compute the same bits.
Status rerun_elsewhere(DeviceCall& call) {
  OPGATE_RETURN_IF_ERROR(call.finish());
  const auto before = call.engine().contents();
  call.engine().fill_otherwise();
  OPGATE_RETURN_IF_ERROR(call.run());
  call.wait();
  OPGATE_RETURN_IF_ERROR(call.finish());
  const auto after = call.engine().contents();
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i] != after[i]) {
      return Status::internal("output " + std::to_string(i) +
                              " differs when its memory held something else before: not all of it is written");
    }
  }
  return {};
}

/// The time of a call in milliseconds, from a graph of many calls. The calls use as many sets of memory in turn as it
/// takes to fill the L2 cache twice.
Status time_call(const Op& op, const CaseToRun& wanted, const Attributes& attributes, const Options& options,
                 KernelCache& kernels, DeviceCall& first, double& milliseconds) {
  constexpr std::size_t kFewestCalls = 20, kMostSets = 64;
  constexpr double kMostMilliseconds = 1000;
  int cache = 0;
  must(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, cuda::current_device()), "asking for the cache's size");
  const std::size_t bytes = std::max<std::size_t>(first.bytes(), 1);
  const std::size_t sets = std::clamp<std::size_t>(2 * static_cast<std::size_t>(cache) / bytes + 1, 2, kMostSets);
  std::vector<std::unique_ptr<DeviceCall>> others;
  for (std::size_t i = 1; i < sets; ++i) {
    others.push_back(std::make_unique<DeviceCall>(op, wanted, attributes, options, kernels, first.stream()));
    OPGATE_RETURN_IF_ERROR(others.back()->run());
  }
  const double once = median_time(1, first.stream(), [&] { return first.run(); });
  const auto affordable = static_cast<std::size_t>(kMostMilliseconds / options.timed_runs / std::max(once, 1e-3));
  const std::size_t calls = std::clamp<std::size_t>(affordable, 1, (kFewestCalls + sets - 1) / sets * sets);
  const auto run_all = [&]() -> Status {
    for (std::size_t i = 0; i < calls; ++i) {
      DeviceCall& call = i % sets ? *others[i % sets - 1] : first;
      OPGATE_RETURN_IF_ERROR(call.run());
    }
    return {};
  };
  Graph graph;
  OPGATE_RETURN_IF_ERROR(Graph::capture(first.stream(), run_all, graph));
  OPGATE_RETURN_IF_ERROR(graph.launch(first.stream()));  // the first launch uploads the graph
  first.wait();
  const auto launch = [&] { return graph.launch(first.stream()); };
  milliseconds = median_time(options.timed_runs, first.stream(), launch) / static_cast<double>(calls);
  return {};
}

Status run_case(const Op& op, const CaseToRun& wanted, const Attributes& attributes, const Options& options,
                KernelCache& kernels, DeviceCall& call, double& milliseconds) {
  OPGATE_RETURN_IF_ERROR(call.run());
  call.wait();
  if (options.graph) OPGATE_RETURN_IF_ERROR(replay(call));
  if (options.written) OPGATE_RETURN_IF_ERROR(rerun_elsewhere(call));
  if (options.streams) {
    const Stream stream;
    DeviceCall second(op, wanted, attributes, options, kernels, stream.get());
    OPGATE_RETURN_IF_ERROR(run_beside(call, second));
    OPGATE_RETURN_IF_ERROR(call.finish());
    if (call.engine().contents() != second.engine().contents())
      return Status::internal("two streams at once computed different outputs");
    return {};
  }
  if (options.timed_runs == 0) return call.finish();
  OPGATE_RETURN_IF_ERROR(call.unpad());
  return time_call(op, wanted, attributes, options, kernels, call, milliseconds);
}

void answer_case(const Op& op, const Attributes& attributes, const CaseToRun& wanted, const Options& options,
                 cudaStream_t stream) {
  KernelCache kernels(1);
  DeviceCall call(op, wanted, attributes, options, kernels, stream);
  double milliseconds = 0;
  const Status status = run_case(op, wanted, attributes, options, kernels, call, milliseconds);
  if (!status.ok()) return write_error(status.message());
  write_error("");
  call.engine().write_outputs(options.timed_runs > 0);
  write_end(milliseconds, call.tensor_bytes());
}

/// Bytes per second, by the median time of copies of 1 GiB.
double copy_bandwidth(cudaStream_t stream) {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  const DeviceMemory from(kBytes, 0, {}, stream), to(kBytes, 0, {}, stream);
  const double milliseconds =
      median_time(20, stream, [&] { return cuda::copy(to.data(), from.data(), kBytes, stream); });
  return 2.0 * static_cast<double>(kBytes) / (milliseconds / 1e3);
}

Options parse(int count, char** arguments, cudaStream_t stream) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--bandwidth") {
      std::printf("%.6g\n", copy_bandwidth(stream));
      std::exit(0);
    } else if (argument == "--unaligned") {
      options.layout.unaligned = true;
    } else if (argument == "--exact") {
      options.layout.exact = true;
    } else if (argument == "--padded") {
      options.padded = true;
    } else if (argument == "--graph") {
      options.padded = options.graph = true;
    } else if (argument == "--streams") {
      options.padded = options.streams = true;
    } else if (argument == "--written") {
      options.written = true;
    } else if (argument == "--time" && i + 1 < count) {
      options.timed_runs = std::atoi(arguments[++i]);
      options.padded = true;
    } else if (const auto caller = std::ranges::find(callers(), argument, &Caller::option);
               caller != callers().end() && i + 1 < count) {
      must(caller->make(arguments[++i], options.call));
    } else {
      fail(
          "usage: opgate_gpu_runner [--unaligned] [--exact] [--padded] [--graph] [--streams] [--written] "
          "[--time RUNS] [--plugins LIBRARY] < cases > results, or --table, or --bandwidth");
    }
  }
  return options;
}

/// Lets the device keep memory that was freed for later. Otherwise each wait gives it back.
void keep_memory() {
  cudaMemPool_t pool;
  std::uint64_t all = UINT64_MAX;
  must(cudaDeviceGetDefaultMemPool(&pool, 0), "finding the memory pool");
  must(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "setting up the memory pool");
}

}  // namespace
}  // namespace opgate

int main(int count, char** arguments) {
  using namespace opgate;
  if (printed_table(count, arguments)) return 0;  // needs no device
  keep_memory();
  const Stream stream;
  const Options options = parse(count, arguments, stream.get());
  answer_cases([&](const Op& op, const Attributes& attributes, const CaseToRun& wanted) {
    answer_case(op, attributes, wanted, options, stream.get());
  });
}

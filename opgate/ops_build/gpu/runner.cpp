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

#include "call/table_json.h"
#include "caller.h"
#include "core/cuda.h"
#include "runner/case_io.h"

namespace opgate {
namespace {

using namespace runner;

constexpr int kPattern = 0xfb;       // makes floats of about -2.6e36 and negative integers
constexpr int kOtherPattern = 0x3a;  // makes floats of about 7e-4 and positive integers
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t kZone = 0;  // the sanitizer checks reads and writes from the first byte on
#else
constexpr std::size_t kZone = 256;
#endif

void must(const Status& status) {
  if (!status.ok()) fail(status.message());
}

void must(cudaError_t error, const char* doing) { must(cuda::status(error, doing)); }

// Device memory.

/// How tensors lie in device memory.
struct Layout {
  bool unaligned = false;  ///< one element behind an aligned address
  bool exact = false;      ///< no pattern, and no zone behind the tensor
};

/// Device memory that is filled with the pattern, with a zone behind it.
class DeviceMemory {
 public:
  /// `element` is the size of an element in bytes: the offset of unaligned memory.
  DeviceMemory(std::size_t bytes, std::size_t element, Layout layout, cudaStream_t stream)
      : bytes_(bytes),
        offset_(layout.unaligned ? element : 0),
        zone_(layout.exact ? 0 : kZone),
        pooled_(!layout.exact),
        stream_(stream) {
    const std::size_t all = std::max<std::size_t>(offset_ + bytes + zone_, 1);
    // compute-sanitizer knows the exact size of memory from cudaMalloc only.
    const cudaError_t error = pooled_ ? cudaMallocAsync(&start_, all, stream) : cudaMalloc(&start_, all);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      throw std::bad_alloc();
    }
    if (pooled_) clear();
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { (void)(pooled_ ? cudaFreeAsync(start_, stream_) : cudaFree(start_)); }

  /// Fills the memory and the zone with the pattern.
  void clear() const { must(cudaMemsetAsync(start_, kPattern, offset_ + bytes_ + zone_, stream_), "filling memory"); }

  /// Fills the memory with a value, but not the zone.
  void fill(int value) const { must(cudaMemsetAsync(data(), value, bytes_, stream_), "filling memory"); }

  char* data() const { return static_cast<char*>(start_) + offset_; }
  std::size_t size() const { return bytes_; }

  void write(std::span<const char> bytes) const {
    if (!bytes.empty()) {
      must(cudaMemcpyAsync(data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream_), "copying an input");
    }
  }

  std::vector<char> read(std::size_t count) const {
    std::vector<char> bytes(count);
    if (count) must(cuda::read(bytes.data(), data(), count, stream_));
    return bytes;
  }

  /// Whether nobody has written to the zone.
  bool intact() const {
    std::vector<unsigned char> zone(zone_);
    if (zone_) must(cuda::read(zone.data(), data() + bytes_, zone_, stream_));
    return std::ranges::all_of(zone, [](unsigned char byte) { return byte == kPattern; });
  }

 private:
  std::size_t bytes_, offset_, zone_;
  bool pooled_;
  cudaStream_t stream_;
  void* start_ = nullptr;
};

/// The engine of a case. Later runs of the case get the memory of the first one.
class KernelEngine final : public Engine {
 public:
  KernelEngine(const Signature& signature, std::uint64_t wanted, Layout layout, bool padded, cudaStream_t stream)
      : wanted_(wanted), layout_(layout), padded_(padded), stream_(stream), outputs_(signature.outputs.size()) {}

  void* stream() override { return stream_; }

  bool takes_padded_outputs() const override { return padded_; }

  void parallel_for(std::size_t tasks, void (*task)(void*, std::size_t), void* user) override {
    for (std::size_t i = 0; i < tasks; ++i) task(user, i);
  }

  Status allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    if (!(wanted_ >> index & 1)) return {};
    CreatedOutput& created = outputs_[index];
    created.dtype = dtype;
    created.dims = Dims(dims);
    if (!created.memory) created.memory = allocate(bytes_of(dtype, dims), size_of(dtype), layout_);
    *data = created.memory->data();
    return {};
  }

  void* scratch(std::size_t bytes) override {
    if (next_scratch_ == scratch_.size()) scratch_.push_back(allocate_aligned(bytes));
    return scratch_[next_scratch_++]->data();
  }

  Status allocate_sizes(std::size_t count, std::int64_t** sizes) override {
    if (!sizes_) sizes_ = allocate_aligned(count * sizeof(std::int64_t));
    *sizes = reinterpret_cast<std::int64_t*>(sizes_->data());
    return {};
  }

  Status allocate_bounded(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    return allocate_output(index, dtype, dims, data);
  }

  /// Reads the sizes after a call with padded outputs, and gives the outputs their exact dims.
  Status unpad(const Op& op, const InputPointers& inputs, const Attributes& attributes) {
    if (!sizes_) return {};
    std::vector<std::int64_t> sizes(sizes_->size() / sizeof(std::int64_t));
    OPGATE_RETURN_IF_ERROR(read_sizes(sizes));
    std::vector<Dims> dims;
    OPGATE_RETURN_IF_ERROR(exact_dims(op, inputs, attributes, sizes, dims));
    for (std::size_t i = 0; i < dims.size(); ++i) outputs_[i].dims = dims[i];
    return {};
  }

  Status read_sizes(std::span<std::int64_t> sizes) override {
    return cuda::read(sizes.data(), sizes_->data(), sizes.size_bytes(), stream_);
  }

  Status trim(std::size_t index, DType, std::span<const std::int64_t> dims) override {
    outputs_[index].dims = Dims(dims);
    return {};
  }

  /// Lets the next call have the scratch memory of the last one.
  void rewind() { next_scratch_ = 0; }

  /// Fills everything that the kernel writes with the pattern.
  void clear() const {
    for_all([](const DeviceMemory& memory) { memory.clear(); });
  }

  /// Fills everything that the kernel writes with another pattern.
  void fill_otherwise() const {
    for_all([](const DeviceMemory& memory) { memory.fill(kOtherPattern); });
  }

  /// The bytes of the outputs and of the scratch memory.
  std::size_t bytes() const {
    std::size_t bytes = 0;
    for (const CreatedOutput& created : outputs_) bytes += created.memory ? created.memory->size() : 0;
    for (const Memory& memory : scratch_) bytes += memory->size();
    return bytes;
  }

  /// An output: its dims and its bytes. An output that nobody wants has none.
  using Content = std::pair<std::vector<std::int64_t>, std::vector<char>>;

  std::vector<Content> contents() const {
    std::vector<Content> contents;
    for (const CreatedOutput& created : outputs_) {
      Content& content = contents.emplace_back();
      if (!created.memory) continue;
      content.first.assign(created.dims.begin(), created.dims.end());
      content.second = created.memory->read(bytes_of(created.dtype, created.dims));
    }
    return contents;
  }

  Status check() const {
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      if (outputs_[i].memory && !outputs_[i].memory->intact()) return wrote_past("output " + std::to_string(i));
    }
    if (sizes_ && !sizes_->intact()) return wrote_past("the sizes");
    for (std::size_t i = 0; i < scratch_.size(); ++i) {
      if (!scratch_[i]->intact()) return wrote_past("scratch memory " + std::to_string(i));
    }
    return {};
  }

  /// The bytes of the outputs, without padding.
  std::size_t output_bytes() const {
    std::size_t bytes = 0;
    for (const CreatedOutput& created : outputs_) bytes += created.memory ? bytes_of(created.dtype, created.dims) : 0;
    return bytes;
  }

  /// Writes the outputs, or that there are none.
  void write_outputs(bool none) const {
    write(static_cast<std::uint32_t>(outputs_.size()));
    for (const CreatedOutput& created : outputs_) {
      if (created.memory && !none) {
        const HostTensor tensor{
            created.dtype, created.dims, created.memory->read(bytes_of(created.dtype, created.dims)), {}};
        write_tensor(&tensor);
      } else {
        write_tensor(nullptr);
      }
    }
  }

 private:
  using Memory = std::unique_ptr<DeviceMemory>;

  template <typename Function>
  void for_all(const Function& function) const {
    for (const CreatedOutput& created : outputs_) {
      if (created.memory) function(*created.memory);
    }
    for (const Memory& memory : scratch_) function(*memory);
    if (sizes_) function(*sizes_);
  }

  struct CreatedOutput {
    DType dtype = DType::f32;
    Dims dims;
    Memory memory;
  };

  Memory allocate(std::size_t bytes, std::size_t element, Layout layout) const {
    return std::make_unique<DeviceMemory>(bytes, element, layout, stream_);
  }

  /// Scratch memory and sizes are aligned, because the kernel asks for them without regard to the tensors.
  Memory allocate_aligned(std::size_t bytes) const { return allocate(bytes, 0, {false, layout_.exact}); }

  static Status wrote_past(const std::string& what) {
    return Status::internal("the kernel has written past the end of " + what);
  }

  std::uint64_t wanted_;
  Layout layout_;
  bool padded_;
  cudaStream_t stream_;
  std::vector<CreatedOutput> outputs_;
  std::vector<Memory> scratch_;
  Memory sizes_;
  std::size_t next_scratch_ = 0;
};

Status call_kernel(const Op& op, const InputPointers& inputs, const Attributes& attributes, Engine& engine,
                   KernelCache& kernels) {
  return invoke(op, Device::cuda, inputs, attributes, engine, &kernels);
}

struct Options {
  int timed_runs = 0;
  Layout layout;
  bool padded = false, graph = false, streams = false, written = false;
  Call call = call_kernel;
};

/// The inputs of one call. They are on the device, except for `const` inputs.
class DeviceInputs {
 public:
  DeviceInputs(const Signature& signature, const CaseToRun& wanted, Layout layout, cudaStream_t stream)
      : host_(wanted.inputs), memory_(host_.size()), tensors_(host_.size()) {
    for (std::size_t i = 0; i < host_.size(); ++i) {
      pointers_.push_back(host_[i] ? &tensors_[i] : nullptr);
      if (!host_[i]) continue;
      void* data = host_[i]->bytes.data();
      const bool on_host = !signature.inputs.empty() && signature.inputs[std::min(i, signature.inputs.size() - 1)].host;
      if (!on_host) {
        memory_[i] = std::make_unique<DeviceMemory>(host_[i]->bytes.size(), size_of(host_[i]->dtype), layout, stream);
        memory_[i]->write(host_[i]->bytes);
        data = memory_[i]->data();
      }
      const std::size_t input = std::min(i, signature.inputs.size() - 1);
      tensors_[i] = Tensor(data, host_[i]->dtype, host_[i]->dims, on_host ? Device::cpu : Device::cuda,
                           signature.inputs[input].name);
    }
  }

  const InputPointers& pointers() const { return pointers_; }

  /// The bytes of the inputs on the device.
  std::size_t bytes() const {
    std::size_t bytes = 0;
    for (const auto& memory : memory_) bytes += memory ? memory->size() : 0;
    return bytes;
  }

  Status check() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (memory_[i] && (!memory_[i]->intact() || memory_[i]->read(memory_[i]->size()) != host_[i]->bytes)) {
        return Status::internal("the kernel has written to input " + std::to_string(i));
      }
    }
    return {};
  }

 private:
  const std::vector<std::unique_ptr<HostTensor>>& host_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
  std::vector<Tensor> tensors_;
  InputPointers pointers_;
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

/// A call of an op with its own memory, on a stream.
class PreparedCall {
 public:
  PreparedCall(const Op& op, const CaseToRun& wanted, const Attributes& attributes, const Options& options,
               KernelCache& kernels, cudaStream_t stream)
      : op_(op),
        attributes_(attributes),
        options_(options),
        kernels_(kernels),
        stream_(stream),
        inputs_(op.signature, wanted, options.layout, stream),
        engine_(op.signature, wanted.wanted, options.layout, options.padded, stream) {}

  /// Launches the kernels. The first call allocates the outputs and the scratch memory, later calls use them again.
  Status run() {
    engine_.rewind();
    return options_.call(op_, inputs_.pointers(), attributes_, engine_, kernels_);
  }

  /// Waits for the kernels. After an error on the device no call works, so the program ends.
  void wait() const {
    const Status status = cuda::status(cudaStreamSynchronize(stream_), "waiting for a kernel");
    if (!status.ok()) fail(op_.signature.name + ": " + status.message());
  }

  /// Finds the exact dims, and checks that the kernels wrote to nothing but their outputs.
  Status finish() {
    OPGATE_RETURN_IF_ERROR(unpad());
    OPGATE_RETURN_IF_ERROR(engine_.check());
    return inputs_.check();
  }

  /// Finds the exact dims of padded outputs.
  Status unpad() { return options_.padded ? engine_.unpad(op_, inputs_.pointers(), attributes_) : Status(); }

  const KernelEngine& engine() const { return engine_; }
  cudaStream_t stream() const { return stream_; }
  /// The bytes of the inputs and the outputs, and these with the scratch memory.
  std::size_t tensor_bytes() const { return inputs_.bytes() + engine_.output_bytes(); }
  std::size_t bytes() const { return inputs_.bytes() + engine_.bytes(); }

 private:
  const Op& op_;
  const Attributes& attributes_;
  const Options& options_;
  KernelCache& kernels_;
  cudaStream_t stream_;
  DeviceInputs inputs_;
  KernelEngine engine_;
};

/// Runs the call from a graph, twice: the kernels must set all that they need in each launch.
Status replay(PreparedCall& call) {
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
Status run_beside(PreparedCall& call, PreparedCall& second) {
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
Status rerun_elsewhere(PreparedCall& call) {
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
                 KernelCache& kernels, PreparedCall& first, double& milliseconds) {
  constexpr std::size_t kFewestCalls = 20, kMostSets = 64;
  constexpr double kMostMilliseconds = 1000;
  int cache = 0;
  must(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, cuda::current_device()), "asking for the cache's size");
  const std::size_t bytes = std::max<std::size_t>(first.bytes(), 1);
  const std::size_t sets = std::clamp<std::size_t>(2 * static_cast<std::size_t>(cache) / bytes + 1, 2, kMostSets);
  std::vector<std::unique_ptr<PreparedCall>> others;
  for (std::size_t i = 1; i < sets; ++i) {
    others.push_back(std::make_unique<PreparedCall>(op, wanted, attributes, options, kernels, first.stream()));
    OPGATE_RETURN_IF_ERROR(others.back()->run());
  }
  const double once = median_time(1, first.stream(), [&] { return first.run(); });
  const auto affordable = static_cast<std::size_t>(kMostMilliseconds / options.timed_runs / std::max(once, 1e-3));
  const std::size_t calls = std::clamp<std::size_t>(affordable, 1, (kFewestCalls + sets - 1) / sets * sets);
  const auto run_all = [&]() -> Status {
    for (std::size_t i = 0; i < calls; ++i) {
      PreparedCall& call = i % sets ? *others[i % sets - 1] : first;
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
                KernelCache& kernels, PreparedCall& call, double& milliseconds) {
  OPGATE_RETURN_IF_ERROR(call.run());
  call.wait();
  if (options.graph) OPGATE_RETURN_IF_ERROR(replay(call));
  if (options.written) OPGATE_RETURN_IF_ERROR(rerun_elsewhere(call));
  if (options.streams) {
    const Stream stream;
    PreparedCall second(op, wanted, attributes, options, kernels, stream.get());
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

void answer_case(const CaseToRun& wanted, const Options& options, cudaStream_t stream) {
  const Op* const op = Table::instance().find(wanted.op);
  if (!op) return write_error("there is no op " + wanted.op);
  Attributes attributes;
  if (Status status = packed::make_attributes(op->signature, wanted.attributes, attributes); !status.ok()) {
    return write_error(status.message());
  }
  KernelCache kernels(1);
  PreparedCall call(*op, wanted, attributes, options, kernels, stream);
  double milliseconds = 0;
  const Status status = run_case(*op, wanted, attributes, options, kernels, call, milliseconds);
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
  if (count == 2 && std::string_view(arguments[1]) == "--table") {  // needs no device
    std::puts(table_json(Table::instance()).c_str());
    return 0;
  }
  keep_memory();
  const Stream stream;
  const Options options = parse(count, arguments, stream.get());
  for (CaseToRun wanted; read_case(wanted); wanted = {}) {
    answer_case(wanted, options, stream.get());
    std::fflush(stdout);
  }
}

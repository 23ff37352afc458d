// Runs kernels without an engine: CUDA kernels, or those of the CPU in a build without CUDA. It reads cases from
// standard input and writes the result of each to standard output, in the format of cases_file.py. Both may be pipes or
// files.
//
//   opgate_runner [OPTIONS] < cases > results
//   opgate_runner --table           prints the op table as JSON
//
// Before a run, outputs and scratch memory are filled with a pattern, and behind each of them is a zone that must keep
// the pattern. Under the address sanitizer each tensor has exactly its bytes on the heap instead. Inputs must not
// change. On the CPU, parallel_for makes as many pieces as it may and runs them on four threads.
//
//   --unaligned        puts all tensors one element behind an aligned address
//   --exact            allocates exactly the bytes of each tensor, without zones and without the pattern, so that
//                      compute-sanitizer sees each access that is out of bounds and each read of uninitialized memory
//   --padded           takes padded outputs (engine.h) and reads the sizes after the call
//   --written          runs the case once more on memory that is filled with another pattern; both must compute
//                      the same bits, so that no output shows what lay in its memory before
//
// With CUDA, kernels run on a stream that doesn't wait for other streams, and there is more:
//
//   --bandwidth        prints how many bytes a copy on the device reads and writes per second
//   --graph            captures the call in a CUDA graph and launches the graph twice; the outputs are those of the
//                      second launch. Implies --padded.
//   --streams          runs the case on two streams at once, with one kernel object; both must compute the same bits.
//                      Implies --padded.
//   --time RUNS        launches a graph of many calls RUNS times and reports the median time of a call, and no
//                      outputs. The calls use different memory in turn, so that the inputs of a call are not in the L2
//                      cache. A slow call is repeated less often. Implies --padded.
//   --plugins LIBRARY  calls the TensorRT plugins of the ops instead of the kernels
#include "caller.h"
#ifdef OPGATE_WITH_CUDA
#include "cuda_device.h"
#else
#include "cpu_device.h"
#endif

namespace opgate::runner {
namespace {

#ifdef OPGATE_WITH_CUDA
using On = Cuda;
#else
using On = Cpu;
#endif
using DeviceCall = PreparedCall<On>;

struct Options : CallOptions {
  Options() { call = call_kernel<On>; }

  int timed_runs = 0;
  bool graph = false, streams = false, written = false;
};

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

#ifdef OPGATE_WITH_CUDA
/// Runs a case in the ways that only a GPU has.
Status run_on_gpu(const Op& op, const CaseToRun& wanted, const Attributes& attributes, const Options& options,
                  KernelCache& kernels, DeviceCall& call, double& milliseconds) {
  if (options.graph) OPGATE_RETURN_IF_ERROR(replay(call));
  if (options.streams) {
    const Stream stream;
    DeviceCall second(op, wanted, attributes, options, kernels, stream.get());
    OPGATE_RETURN_IF_ERROR(run_beside(call, second));
    OPGATE_RETURN_IF_ERROR(call.finish());
    if (call.engine().contents() != second.engine().contents())
      return Status::internal("two streams at once computed different outputs");
  }
  if (options.timed_runs == 0) return {};
  OPGATE_RETURN_IF_ERROR(call.unpad());
  return time_call(op, wanted, attributes, options, options.timed_runs, kernels, call, milliseconds);
}
#endif

Status run_case(const Op& op, const CaseToRun& wanted, const Attributes& attributes, const Options& options,
                KernelCache& kernels, DeviceCall& call, double& milliseconds) {
  OPGATE_RETURN_IF_ERROR(call.run());
  call.wait();
  if (options.written) OPGATE_RETURN_IF_ERROR(rerun_elsewhere(call));
#ifdef OPGATE_WITH_CUDA
  OPGATE_RETURN_IF_ERROR(run_on_gpu(op, wanted, attributes, options, kernels, call, milliseconds));
#endif
  return options.timed_runs == 0 ? call.finish() : Status();
}

void answer_case(const Op& op, const Attributes& attributes, const CaseToRun& wanted, const Options& options,
                 On::Stream stream) {
  KernelCache kernels(1);
  DeviceCall call(op, wanted, attributes, options, kernels, stream);
  double milliseconds = 0;
  const Status status = run_case(op, wanted, attributes, options, kernels, call, milliseconds);
  if (!status.ok()) return write_error(status.message());
  write_error("");
  call.engine().write_outputs(options.timed_runs > 0);
  write_end(milliseconds, options.timed_runs > 0 ? call.tensor_bytes() : 0);
}

[[noreturn]] void explain_usage() {
#ifdef OPGATE_WITH_CUDA
  const char* const more = " [--graph] [--streams] [--time RUNS] [--plugins LIBRARY]";
  const char* const other = ", or --bandwidth";
#else
  const char* const more = "";
  const char* const other = "";
#endif
  fail(std::string("usage: opgate_runner [--unaligned] [--exact] [--padded] [--written]") + more +
       " < cases > results, or --table" + other);
}

Options parse(int count, char** arguments, [[maybe_unused]] On::Stream stream) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--unaligned") {
      options.layout.unaligned = true;
    } else if (argument == "--exact") {
      options.layout.exact = true;
    } else if (argument == "--padded") {
      options.padded = true;
    } else if (argument == "--written") {
      options.written = true;
    } else if (const auto caller = std::ranges::find(callers(), argument, &Caller::option);
               caller != callers().end() && i + 1 < count) {
      must(caller->make(arguments[++i], options.call));
#ifdef OPGATE_WITH_CUDA
    } else if (argument == "--bandwidth") {
      std::printf("%.6g\n", copy_bandwidth(stream));
      std::exit(0);
    } else if (argument == "--graph") {
      options.padded = options.graph = true;
    } else if (argument == "--streams") {
      options.padded = options.streams = true;
    } else if (argument == "--time" && i + 1 < count) {
      options.timed_runs = std::atoi(arguments[++i]);
      options.padded = true;
#endif
    } else {
      explain_usage();
    }
  }
  return options;
}

}  // namespace
}  // namespace opgate::runner

int main(int count, char** arguments) {
  using namespace opgate::runner;
  if (printed_table(count, arguments)) return 0;  // needs no device
#ifdef OPGATE_WITH_CUDA
  keep_memory();
  const Stream stream;
  const On::Stream on = stream.get();
#else
  const On::Stream on = nullptr;
#endif
  const Options options = parse(count, arguments, on);
  answer_cases([&](const opgate::Op& op, const opgate::Attributes& attributes, const CaseToRun& wanted) {
    answer_case(op, attributes, wanted, options, on);
  });
}

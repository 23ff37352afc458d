// Runs CPU kernels without an engine, for builds with sanitizers. It reads cases from standard input and writes the
// result of each to standard output, in the format of cases_file.py.
//
//   opgate_cpu_runner < cases > results
//   opgate_cpu_runner --table       prints the op table as JSON
//
// Outputs and scratch memory begin as a pattern. Under the address sanitizer each tensor has exactly its bytes on the
// heap. parallel_for makes as many pieces as it may and runs them on four threads.
#include <cstring>

#include "prepared_call.h"

namespace opgate::runner {
namespace {

/// Kernels on the CPU have no stream.
struct Cpu {
  static constexpr Device kDevice = Device::cpu;
  using Stream = void*;

  static void* allocate(std::size_t bytes, std::size_t alignment, bool, Stream) {
    void* memory = nullptr;
    if (posix_memalign(&memory, alignment, bytes) != 0) throw std::bad_alloc();
    return memory;
  }
  static void release(void* memory, bool, Stream) { std::free(memory); }
  static void fill(void* to, int value, std::size_t bytes, Stream) { std::memset(to, value, bytes); }
  static void write(void* to, const void* from, std::size_t bytes, Stream) { std::memcpy(to, from, bytes); }
  static Status read(void* to, const void* from, std::size_t bytes, Stream) {
    std::memcpy(to, from, bytes);
    return {};
  }
  static Status wait(Stream) { return {}; }
};

void answer_case(const Op& op, const Attributes& attributes, const CaseToRun& wanted) {
  const CallOptions options{.call = call_kernel<Cpu>};
  KernelCache kernels(1);
  PreparedCall<Cpu> call(op, wanted, attributes, options, kernels, nullptr);
  Status status = call.run();
  if (status.ok()) status = call.finish();
  write_error(status.message());
  if (!status.ok()) return;
  call.engine().write_outputs();
  write_end();
}

}  // namespace
}  // namespace opgate::runner

int main(int count, char** arguments) {
  using namespace opgate::runner;
  if (printed_table(count, arguments)) return 0;
  if (count > 1) fail("usage: opgate_cpu_runner < cases > results, or --table");
  answer_cases(answer_case);
}

// Runs CPU kernels without an engine, for builds with sanitizers. It reads cases from standard input and writes the
// result of each to standard output, in the format of cases_file.py.
//
//   opgate_cpu_runner < cases > results
//   opgate_cpu_runner --table       prints the op table as JSON
//
// Each tensor has exactly its bytes on the heap. Outputs and scratch memory begin as a pattern. parallel_for makes as
// many pieces as it may and runs them on four threads.
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "call/table_json.h"
#include "case_io.h"

namespace opgate {
namespace {

using namespace runner;

constexpr int kPattern = 0xfb;  // makes floats of about -2.6e36 and negative integers
constexpr std::size_t kThreads = 4;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

Memory allocate(std::size_t bytes, std::size_t alignment) {
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, bytes) != 0) throw std::bad_alloc();
  if (bytes) std::memset(memory, kPattern, bytes);
  return Memory(memory);
}

class HeapEngine final : public Engine {
 public:
  HeapEngine(std::size_t outputs, std::uint64_t wanted) : wanted_(wanted), outputs_(outputs) {}

  Status allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    if (!(wanted_ >> index & 1)) return {};
    Created& created = outputs_[index];
    created.tensor.dtype = dtype;
    created.tensor.dims = Dims(dims);
    created.wanted = true;
    if (dtype == DType::str) {
      created.tensor.texts.resize(static_cast<std::size_t>(Tensor(nullptr, dtype, dims).size()));
      *data = created.tensor.texts.data();
    } else {
      created.memory = allocate(bytes_of(dtype, dims), alignof(std::max_align_t));
      *data = created.memory.get();
    }
    return {};
  }

  void parallel_for(std::size_t tasks, void (*task)(void* user, std::size_t i), void* user) override {
    // Each thread has its tasks from the beginning. A counter that they share would synchronize them, and the thread
    // sanitizer would find no race.
    std::vector<std::thread> threads;
    for (std::size_t first = 0; first < std::min(kThreads, tasks); ++first) {
      threads.emplace_back([=] {
        for (std::size_t i = first; i < tasks; i += kThreads) task(user, i);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  bool splits_finely() const override { return true; }

  void* scratch(std::size_t bytes) override {
    scratch_.push_back(allocate(bytes, 64));
    return scratch_.back().get();
  }

  void write_outputs() {
    write(static_cast<std::uint32_t>(outputs_.size()));
    for (Created& created : outputs_) {
      if (created.memory) {
        const auto* const first = static_cast<const char*>(created.memory.get());
        created.tensor.bytes.assign(first, first + bytes_of(created.tensor.dtype, created.tensor.dims));
      }
      write_tensor(created.wanted ? &created.tensor : nullptr);
    }
  }

 private:
  struct Created {
    HostTensor tensor;
    Memory memory;
    bool wanted = false;
  };

  std::uint64_t wanted_;
  std::vector<Created> outputs_;
  std::vector<Memory> scratch_;
};

/// The inputs of a case, each with exactly its bytes.
class HeapInputs {
 public:
  HeapInputs(const Signature& signature, const CaseToRun& wanted)
      : host_(wanted.inputs), memory_(host_.size()), texts_(host_.size()), tensors_(host_.size()) {
    for (std::size_t i = 0; i < host_.size(); ++i) {
      pointers_.push_back(host_[i] ? &tensors_[i] : nullptr);
      if (!host_[i]) continue;
      const HostTensor& tensor = *host_[i];
      texts_[i].assign(tensor.texts.begin(), tensor.texts.end());
      const void* data = texts_[i].data();
      if (tensor.dtype != DType::str) {
        memory_[i] = allocate(tensor.bytes.size(), alignof(std::max_align_t));
        if (!tensor.bytes.empty()) std::memcpy(memory_[i].get(), tensor.bytes.data(), tensor.bytes.size());
        data = memory_[i].get();
      }
      const Input& input = signature.inputs[std::min(i, signature.inputs.size() - 1)];
      tensors_[i] = Tensor(data, tensor.dtype, tensor.dims, Device::cpu, input.name);
    }
  }

  const InputPointers& pointers() const { return pointers_; }

  Status check() const {
    for (std::size_t i = 0; i < host_.size(); ++i) {
      if (memory_[i] && !host_[i]->bytes.empty() &&
          std::memcmp(memory_[i].get(), host_[i]->bytes.data(), host_[i]->bytes.size()) != 0) {
        return Status::internal("the kernel wrote to input '" + std::string(tensors_[i].name()) + "'");
      }
    }
    return {};
  }

 private:
  const std::vector<std::unique_ptr<HostTensor>>& host_;
  std::vector<Memory> memory_;
  std::vector<std::vector<std::string_view>> texts_;
  std::vector<Tensor> tensors_;
  InputPointers pointers_;
};

void answer_case(const CaseToRun& wanted) {
  const Op* const op = Table::instance().find(wanted.op);
  if (!op) return write_error("there is no op " + wanted.op);
  Attributes attributes;
  Status status = packed::make_attributes(op->signature, wanted.attributes, attributes);
  if (!status.ok()) return write_error(status.message());
  KernelCache kernels(1);
  const HeapInputs inputs(op->signature, wanted);
  HeapEngine engine(op->signature.outputs.size(), wanted.wanted);
  status = invoke(*op, Device::cpu, inputs.pointers(), attributes, engine, &kernels);
  if (status.ok()) status = inputs.check();
  write_error(status.message());
  if (!status.ok()) return;
  engine.write_outputs();
  write_end();
}

}  // namespace
}  // namespace opgate

int main(int count, char** arguments) {
  using namespace opgate;
  if (count == 2 && std::string_view(arguments[1]) == "--table") {
    std::puts(table_json(Table::instance()).c_str());
    return 0;
  }
  if (count > 1) fail("usage: opgate_cpu_runner < cases > results, or --table");
  for (CaseToRun wanted; read_case(wanted); wanted = {}) {
    answer_case(wanted);
    std::fflush(stdout);
  }
}

// Guarded tensors: a kernel that reads or writes outside a tensor is found at once, and the message names the tensor.
//
// With OPGATE_GUARD=1 in the environment, every call of a kernel on the CPU gets copies of its inputs, and memory for
// its outputs and its scratch memory, that end where memory without access begins. Such memory also lies before them.
//   - An access that leaves the pages of a tensor ends the process with SIGSEGV. Before that, a line on the standard
//     error says how far from which tensor it was. So does a write to an input.
//   - A write just before an output, on its own page, changes a pattern there. The call then fails.
//   - Outputs and scratch memory begin as the pattern, not as zeros. An element that the kernel leaves out is wrong.
// `opgate verify` runs kernels so. Strings are not guarded.
#pragma once

#include <memory>
#include <vector>

#include "engine.h"
#include "inputs.h"
#include "signature/signature.h"

namespace opgate {

/// Whether OPGATE_GUARD=1 was in the environment when it was first asked.
bool guards_tensors();

class GuardedMemory;

/// Guarded copies of inputs.
class GuardedInputs {
 public:
  /// `op` is the full name of the op, for messages. Throws std::bad_alloc.
  GuardedInputs(const std::string& op, const InputPointers& inputs);
  GuardedInputs(const GuardedInputs&) = delete;
  GuardedInputs& operator=(const GuardedInputs&) = delete;
  ~GuardedInputs();

  const InputPointers& pointers() const { return pointers_; }

 private:
  std::vector<std::unique_ptr<GuardedMemory>> memory_;
  std::vector<Tensor> tensors_;
  InputPointers pointers_;
};

/// The engine of one call, with guarded memory for outputs and scratch memory.
class GuardedEngine final : public Engine {
 public:
  /// `op` is the full name of the op, for messages.
  GuardedEngine(const Signature& signature, std::string op, Engine& engine);
  ~GuardedEngine() override;

  /// After the kernel: fails if it has written outside a tensor. Otherwise copies the outputs to the engine's memory.
  Status finish();

  Status allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override;
  void parallel_for(std::size_t tasks, void (*task)(void* user, std::size_t i), void* user) override {
    engine_.parallel_for(tasks, task, user);
  }
  void* scratch(std::size_t bytes) override;
  int ordinal() override { return engine_.ordinal(); }
  bool prepares_for_sizes() const override { return engine_.prepares_for_sizes(); }

 private:
  /// An output that the kernel writes to `memory`, and the engine's memory for it.
  struct Written {
    GuardedMemory* memory;
    void* target;
  };

  const Signature& signature_;
  std::string op_;
  Engine& engine_;
  std::vector<std::unique_ptr<GuardedMemory>> memory_;
  std::vector<Written> outputs_;
};

}  // namespace opgate

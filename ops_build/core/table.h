// The op table: every op that this library was built with. Adapters read it; nothing else knows which ops there are.
#pragma once

#include <array>
#include <deque>
#include <string>
#include <vector>

#include "kernel.h"
#include "signature.h"

namespace opgate {

struct Op {
  Signature signature;
  std::string doc;  ///< one line
  int since_version = 1;
  std::array<KernelFunction, 2> kernels{};  ///< by Device

  KernelFunction kernel(Device device) const { return kernels[static_cast<int>(device)]; }
};

class Table {
 public:
  /// The table of this library.
  static Table& instance();

  /// Adds a kernel, and the op with its first one. What is wrong with it is kept for errors(): a library must load to
  /// be able to say so.
  void add(const char* signature, const char* doc, Device device, KernelFunction kernel);

  /// Sorted by name; they stay where they are once the library has loaded.
  const std::deque<Op>& ops() const { return ops_; }
  const Op* find(std::string_view name) const;
  const std::vector<std::string>& errors() const { return errors_; }

  /// The domain of all ops in this library.
  static const char* domain();

 private:
  std::deque<Op> ops_;
  std::vector<std::string> errors_;
};

/// Runs an op once: binds and checks the inputs, makes the outputs, calls the kernel, checks that it finished.
/// Throws nothing. Messages begin with "<domain>::<op>: ".
Status invoke(const Op& op, Device device, const InputPointers& inputs, const Attributes& attributes, Engine& engine);

/// The table as JSON (format: docs/signatures.md), and one signature as the same JSON or {"error", "column"}.
std::string table_json(const Table& table);
std::string signature_json(std::string_view text);

}  // namespace opgate

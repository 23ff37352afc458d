// The op table: all ops of this library. The adapters learn from it, and from nothing else, which ops there are.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "kernel.h"
#include "signature/signature.h"

namespace opgate {

struct Op {
  Signature signature;
  std::string doc;  ///< one line
  int since_version = 1;
  std::array<Kernel, 2> kernels{};  ///< by Device

  const Kernel& kernel(Device device) const { return kernels[static_cast<int>(device)]; }
  bool has_kernel(Device device) const { return kernel(device).run != nullptr; }
};

class Table {
 public:
  /// The table of this library.
  static Table& instance();

  /// Adds a kernel. The first kernel of an op adds the op. Mistakes in a signature go to errors(), because a library
  /// must load before it can report them.
  void add(const char* signature, const char* doc, Device device, const Kernel& kernel);

  /// States the gradient of an op: the Python text of its gradient.py, which PyTorch and TensorFlow run.
  void state_gradient(const char* op, const char* text) { gradients_[op] = text; }
  /// The text, empty if none is stated.
  std::string gradient(const std::string& op) const {
    const auto found = gradients_.find(op);
    return found == gradients_.end() ? std::string() : found->second;
  }

  /// Calls registers(). Kernels that it adds take the place of those that the table has.
  template <typename Register>
  void replace_kernels(Register&& registers) {
    replaces_ = true;
    registers();
    replaces_ = false;
  }

  /// All ops, sorted by name. Pointers to them stay valid once the library has been loaded.
  const std::deque<Op>& ops() const { return ops_; }
  const Op* find(std::string_view name) const;
  const std::vector<std::string>& errors() const { return errors_; }

  /// The domain of all ops in this library.
  static const char* domain();

 private:
  std::deque<Op> ops_;
  std::vector<std::string> errors_;
  std::map<std::string, std::string> gradients_;
  bool replaces_ = false;
};

/// A static object of this type states a gradient while the library is loaded.
struct StatedGradient {
  StatedGradient(const char* op, const char* text) { Table::instance().state_gradient(op, text); }
};

}  // namespace opgate

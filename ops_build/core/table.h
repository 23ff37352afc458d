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
  std::array<Kernel, 2> kernels{};  ///< by Device

  const Kernel& kernel(Device device) const { return kernels[static_cast<int>(device)]; }
  bool has_kernel(Device device) const { return kernel(device).run != nullptr; }
};

class Table {
 public:
  /// The table of this library.
  static Table& instance();

  /// Adds a kernel, and the op with its first one. What is wrong with it is kept for errors(): a library must load to
  /// be able to say so.
  void add(const char* signature, const char* doc, Device device, const Kernel& kernel);

  /// Sorted by name. Once the library has loaded, pointers to them stay valid.
  const std::deque<Op>& ops() const { return ops_; }
  const Op* find(std::string_view name) const;
  const std::vector<std::string>& errors() const { return errors_; }

  /// The domain of all ops in this library.
  static const char* domain();

 private:
  std::deque<Op> ops_;
  std::vector<std::string> errors_;
};

}  // namespace opgate

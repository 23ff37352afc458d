// The ways in which the runner calls an op. invoke() is the first one; an option of the command line chooses another.
#pragma once

#include <functional>
#include <vector>

#include "call/invoke.h"

namespace opgate {

/// Runs an op once.
using Call = std::function<Status(const Op&, const InputPointers&, const Attributes&, Engine&, KernelCache&)>;

/// The option `option LIBRARY` of the command line. `make` loads the library, or uses the program itself if it is "".
struct Caller {
  const char* option;
  Status (*make)(const char* library, Call& call);
};

/// All callers of the program. Each adds itself before main() runs.
inline std::vector<Caller>& callers() {
  static std::vector<Caller> all;
  return all;
}

struct CallerRegistration {
  explicit CallerRegistration(const Caller& caller) { callers().push_back(caller); }
};

}  // namespace opgate

// The ways in which the runner calls an op. invoke() is the first one; an option of the command line chooses another.
#pragma once

#include <vector>

#include "prepared_call.h"

namespace opgate::runner {

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

}  // namespace opgate::runner

// The op that a thread runs. The last words of a process that crashes name it.
#pragma once

#include "table.h"

namespace opgate {

/// The name of the op that this thread runs, null if it runs none.
inline thread_local const char* running_op = nullptr;

/// Says, as long as it lives, that this thread runs an op.
class Running {
 public:
  explicit Running(const Op& op) : before_(running_op) { running_op = op.signature.name.c_str(); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() { running_op = before_; }

 private:
  const char* before_;
};

}  // namespace opgate

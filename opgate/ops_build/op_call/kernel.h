// A kernel, and the context of its calls.
//
//   struct Cube {
//     template <typename T>
//     Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const;
//   };
//
// operator() is a template over the signature's type variables, in their order. Without type variables it is no
// template. When it runs, every input has been checked against the signature. It may throw std::bad_alloc and nothing
// else.
//
// A kernel may have three more functions:
//
//   static Status check(const Attributes& attributes, const KnownSizes& sizes);
//     refuses attributes and sizes that no run can use. It is called when a node is made, with the sizes that are known
//     then, and in each call, with all sizes.
//   Status prepare(const Node& node);
//     is called once for a node, before its first run. The kernel keeps what it needs for the runs.
//   static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes& attributes);
//     states the scratch memory of a run (workspace.h). It is a template if operator() is one.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <type_traits>

#include "inputs.h"
#include "node.h"
#include "outputs.h"
#include "signature/attributes.h"
#include "signature/status.h"
#include "workspace.h"

namespace opgate {

class Context {
 public:
  explicit Context(Engine& engine) : engine_(engine), workspace_(engine) {}

  /// Splits [0, count) into pieces of about `grain` and runs body(begin, end) for each on the engine's threads.
  template <typename Body>
  void parallel_for(std::int64_t count, std::int64_t grain, Body&& body) {
    if (count <= 0) return;
    // No pool has more than 256 threads: more pieces would only cost time, so the pieces become larger.
    const std::int64_t smallest = engine_.splits_finely() ? 1 : std::max<std::int64_t>(grain, 1);
    const std::int64_t pieces = std::clamp<std::int64_t>(count / smallest, 1, 256);
    if (pieces == 1) return body(std::int64_t{0}, count);
    Pieces<Body> shared{&body, count, pieces, {}, {}};
    engine_.parallel_for(static_cast<std::size_t>(pieces), &Pieces<Body>::run, &shared);
    if (shared.error) std::rethrow_exception(shared.error);
  }

  /// Uninitialized memory on the kernel's device for `count` values of T, until the kernel returns. A CUDA kernel
  /// should state a workspace instead: then TensorRT runs it without allocating.
  template <typename T>
  std::span<T> scratch(std::int64_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::size_t bytes = Workspace::bytes_of<T>(count);
    if (bytes == 0) return {};
    return {static_cast<T*>(engine_.scratch(bytes)), static_cast<std::size_t>(count)};
  }

  /// The memory that the kernel has stated with workspace().
  Workspace& workspace() { return workspace_; }

  /// The CUDA stream that the call belongs to.
  void* stream() const { return engine_.stream(); }

  /// The number of the device that the call runs on.
  int ordinal() const { return engine_.ordinal(); }

 private:
  template <typename Body>
  struct Pieces {
    std::remove_reference_t<Body>* body;
    std::int64_t count, pieces;
    std::exception_ptr error;  // the first one. An engine's pool can't pass exceptions on.
    std::atomic_flag failed;

    static void run(void* user, std::size_t i) {
      auto& self = *static_cast<Pieces*>(user);
      const auto piece = static_cast<std::int64_t>(i);
      try {
        (*self.body)(edge(self.count, self.pieces, piece), edge(self.count, self.pieces, piece + 1));
      } catch (...) {
        if (!self.failed.test_and_set()) self.error = std::current_exception();
      }
    }

    static std::int64_t edge(std::int64_t count, std::int64_t pieces, std::int64_t piece) {
      return piece * (count / pieces) + std::min(piece, count % pieces);
    }
  };

  Engine& engine_;
  Workspace workspace_;
};

/// The functions of a kernel, without its C++ type. KernelOf (op.h) makes it.
struct Kernel {
  /// Runs the kernel. `kernel` is the object from `prepare`, or nullptr if the kernel doesn't prepare.
  Status (*run)(const void* kernel, Context&, const Inputs&, const Attributes&, Outputs&) = nullptr;

  /// Refuses attributes and sizes that no run can use. nullptr if the kernel has no check().
  Status (*check)(const Attributes&, const KnownSizes&) = nullptr;

  /// Creates a kernel for a node and calls its prepare(). nullptr if the kernel doesn't prepare.
  Status (*prepare)(const Node&, std::shared_ptr<const void>& kernel) = nullptr;

  /// Takes the memory that the kernel needs from the workspace. nullptr if the kernel states no workspace.
  Status (*take_workspace)(Workspace&, const Inputs&, const Attributes&) = nullptr;
};

/// The elements of an optional input, or null.
template <typename T>
const T* data_or_null(const Inputs& in, std::string_view name) {
  return in.has(name) ? in[name].data<T>() : nullptr;
}

/// The elements of an optional output, or null.
template <typename T>
T* data_or_null(Outputs& out, std::string_view name) {
  return out.has(name) ? out[name].data<T>() : nullptr;
}

}  // namespace opgate

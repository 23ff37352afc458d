// What a kernel is, and all that it is given.
//
//   struct Cube {
//     template <typename T>
//     Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const;
//   };
//
// A kernel is a template on the signature's type variables, in their order, or no template where it has none. By the
// time it runs, every input has been checked against the signature. It may throw std::bad_alloc and nothing else.
//
// Two more functions are a kernel's own choice:
//
//   Status prepare(const Node& node);      once for a node, before its first run; the kernel keeps what it needs
//   static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes& attributes);
//                                          states its scratch memory (workspace.h); a template where the kernel is one
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <type_traits>

#include "attributes.h"
#include "inputs.h"
#include "node.h"
#include "outputs.h"
#include "status.h"
#include "workspace.h"

namespace opgate {

class Context {
 public:
  Context(Engine& engine, const Binding<std::int64_t>& binding)
      : engine_(engine), binding_(binding), workspace_(engine) {}

  /// Splits [0, count) into pieces of about `grain` and runs body(begin, end) for each on the engine's threads.
  template <typename Body>
  void parallel_for(std::int64_t count, std::int64_t grain, Body&& body) {
    if (count <= 0) return;
    // No pool has more than 256 threads, so more pieces would only cost. Past that number a piece grows.
    const std::int64_t pieces = std::clamp<std::int64_t>(count / std::max<std::int64_t>(grain, 1), 1, 256);
    if (pieces == 1) return body(std::int64_t{0}, count);
    Pieces<Body> shared{&body, count, pieces, {}, {}};
    engine_.parallel_for(static_cast<std::size_t>(pieces), &Pieces<Body>::run, &shared);
    if (shared.error) std::rethrow_exception(shared.error);
  }

  /// Uninitialized memory on the kernel's device for `count` values of T, until the kernel returns. A kernel for CUDA
  /// states its memory as a workspace instead, where TensorRT is to run it without allocating.
  template <typename T>
  std::span<T> scratch(std::int64_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (count == 0) return {};
    return {static_cast<T*>(engine_.scratch(static_cast<std::size_t>(count) * sizeof(T))),
            static_cast<std::size_t>(count)};
  }

  /// Where the memory that the kernel has stated is taken.
  Workspace& workspace() { return workspace_; }

  /// The CUDA stream that the call belongs to.
  void* stream() const { return engine_.stream(); }

  /// The dtype that a type variable stands for, by its index in the signature.
  DType type(std::size_t variable) const { return *binding_.types[variable]; }

 private:
  template <typename Body>
  struct Pieces {
    std::remove_reference_t<Body>* body;
    std::int64_t count, pieces;
    std::exception_ptr error;  // the first one; no exception may cross an engine's pool
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
  const Binding<std::int64_t>& binding_;
  Workspace workspace_;
};

/// A kernel without its C++ type. op.h makes it.
struct Kernel {
  /// Runs it. `kernel` is what `prepare` has made; nullptr for a kernel that doesn't prepare.
  Status (*run)(const void* kernel, Context&, const Inputs&, const Attributes&, Outputs&) = nullptr;

  /// Makes it for a node. nullptr: the kernel doesn't prepare.
  Status (*prepare)(const Node&, std::shared_ptr<const void>& kernel) = nullptr;

  /// Takes what it needs from the workspace. nullptr: the kernel states none.
  Status (*take_workspace)(Workspace&, const Inputs&, const Attributes&) = nullptr;
};

}  // namespace opgate

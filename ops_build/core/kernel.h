// What a kernel is given: its inputs, attributes and outputs by name, and what the engine lends it for the call.
//
//   struct Cube {
//     template <typename T>
//     Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const;
//   };
//
// A kernel is a template on the signature's type variables, in their order, or no template where it has none. By the
// time it runs every input has been checked against the signature. It may throw std::bad_alloc, nothing else.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <new>
#include <string_view>
#include <type_traits>

#include "attributes.h"
#include "shapes.h"
#include "status.h"
#include "tensor.h"

namespace opgate {

/// What an engine lends to one call of a kernel. Written once for each engine, by its adapter.
class Engine {
 public:
  virtual ~Engine() = default;

  /// Memory for output `index` of these dims; nullptr in `data` when nobody asked for it. For `str` the array of
  /// std::string that the engine reads back after the call.
  virtual Status allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) = 0;

  /// Runs task(user, i) for each i in [0, tasks) on the engine's own threads and returns when all have ended.
  virtual void parallel_for(std::size_t tasks, void (*task)(void* user, std::size_t i), void* user) = 0;

  /// Memory on the kernel's device that lasts until the kernel returns, aligned to 64 bytes. Throws std::bad_alloc.
  virtual void* scratch(std::size_t bytes) = 0;

  /// The CUDA stream of the call; nullptr on the CPU.
  virtual void* stream() { return nullptr; }

  // Sizes that only a kernel on a device knows. It writes them to the device's memory and nobody need wait for it, so
  // the outputs are made at their upper bound and cut afterwards by an engine that must know. An output's elements lie
  // packed as its exact dims say.

  /// Memory on the device for `count` such sizes.
  virtual Status allocate_sizes(std::size_t count, std::int64_t** sizes);

  /// As allocate_output, for an output that has at most these dims.
  virtual Status allocate_bounded(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data);

  /// After the kernel: waits for it and reads the sizes. `known` becomes false in an engine that reads them on its own.
  virtual Status read_sizes(std::span<std::int64_t> sizes, bool& known);

  /// The exact dims of an output that allocate_bounded made.
  virtual Status trim(std::size_t index, DType dtype, std::span<const std::int64_t> dims);
};

class Inputs {
 public:
  Inputs(const Signature& signature, const InputPointers& tensors, const Binding& binding)
      : signature_(signature), tensors_(tensors), binding_(binding) {}

  /// A required input, or an optional one that has() said is there.
  const Tensor& operator[](std::string_view name) const { return *tensors_[index_of(name)]; }

  bool has(std::string_view name) const {
    const std::size_t index = index_of(name);
    return index < tensors_.size() && tensors_[index];
  }

  /// All tensors of the variadic input.
  std::span<const Tensor* const> all(std::string_view name) const {
    return std::span<const Tensor* const>(tensors_).subspan(index_of(name));
  }

  /// A named size of the signature.
  std::int64_t size(std::string_view name) const {
    for (std::size_t i = 0; i < signature_.slots.size(); ++i) {
      if (signature_.slots[i].name == name) return binding_.sizes[i];
    }
    throw std::logic_error("the kernel asks for size '" + std::string(name) + "', which the signature does not have");
  }

 private:
  std::size_t index_of(std::string_view name) const {
    for (std::size_t i = 0; i < signature_.inputs.size(); ++i) {
      if (signature_.inputs[i].name == name) return i;
    }
    throw std::logic_error("the kernel asks for input '" + std::string(name) + "', which the signature does not have");
  }

  const Signature& signature_;
  const InputPointers& tensors_;
  const Binding& binding_;
};

class Outputs {
 public:
  Outputs(const Signature& signature, Device device, Binding& binding, Engine& engine)
      : signature_(signature),
        device_(device),
        binding_(binding),
        engine_(engine),
        outputs_(signature.outputs.size()) {}

  /// An output whose dims are known and that is required or that has() said is wanted. On a device one of a size that
  /// only the kernel knows has its upper bound.
  const Tensor& operator[](std::string_view name) const { return outputs_[index_of(name)].tensor; }

  /// Whether somebody asked for an output whose dims are known.
  bool has(std::string_view name) const { return outputs_[index_of(name)].wanted; }

  /// Binds a size that only the kernel knows (`v<=n` in the signature) and makes the outputs that waited for it.
  Status bind(std::string_view size, std::int64_t value);

  /// Where a kernel on a device writes such a size, in the device's memory; for empty inputs too.
  std::int64_t* device_size(std::string_view size) const;

  /// Makes the outputs whose dims are known, on a device all.
  Status allocate();

  /// After the kernel: an error when it has left a size unbound; cuts what a device's kernel has filled.
  Status finish();

 private:
  struct Made {
    Tensor tensor;
    Dims dims;
    bool done = false;
    bool wanted = false;
    bool bounded = false;
  };

  Status allocate_known();
  Status allocate_bounded();
  Status make(std::size_t index, bool bounded);
  Status bound_of(std::size_t slot, std::int64_t& bound) const;

  std::size_t index_of(std::string_view name) const {
    for (std::size_t i = 0; i < signature_.outputs.size(); ++i) {
      if (signature_.outputs[i].name == name) return i;
    }
    throw std::logic_error("the kernel asks for output '" + std::string(name) + "', which the signature does not have");
  }

  const Signature& signature_;
  Device device_;
  Binding& binding_;
  Engine& engine_;
  std::vector<Made> outputs_;
  std::vector<std::size_t> open_;         // the slots of the sizes that a device's kernel binds
  std::int64_t* device_sizes_ = nullptr;  // one for each of them
};

class Context {
 public:
  Context(Engine& engine, const Binding& binding) : engine_(engine), binding_(binding) {}

  /// Splits [0, count) into pieces of about `grain` and runs body(begin, end) for each on the engine's threads.
  template <typename Body>
  void parallel_for(std::int64_t count, std::int64_t grain, Body&& body) {
    if (count <= 0) return;
    // More pieces than any pool has threads would only cost: past 256 a piece grows.
    const std::int64_t pieces = std::clamp<std::int64_t>(count / std::max<std::int64_t>(grain, 1), 1, 256);
    if (pieces == 1) return body(std::int64_t{0}, count);
    Pieces<Body> shared{&body, count, pieces, {}, {}};
    engine_.parallel_for(static_cast<std::size_t>(pieces), &Pieces<Body>::run, &shared);
    if (shared.error) std::rethrow_exception(shared.error);
  }

  /// Uninitialized memory on the kernel's device for `count` values of T, until the kernel returns.
  template <typename T>
  std::span<T> scratch(std::int64_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (count == 0) return {};
    return {static_cast<T*>(engine_.scratch(static_cast<std::size_t>(count) * sizeof(T))),
            static_cast<std::size_t>(count)};
  }

  /// The CUDA stream that the call belongs to.
  void* stream() const { return engine_.stream(); }

  /// The dtype that a type variable stands for, by its place in the signature.
  DType type(std::size_t variable) const { return binding_.types[variable]; }

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
  const Binding& binding_;
};

using KernelFunction = Status (*)(Context&, const Inputs&, const Attributes&, Outputs&);

}  // namespace opgate

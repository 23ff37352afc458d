// The outputs of one call. The engine creates each as soon as its dims are known. A kernel gets them by name.
#pragma once

#include <stdexcept>

#include "engine.h"
#include "signature/sizes.h"
#include "tensor.h"

namespace opgate {

class Outputs {
 public:
  Outputs(Device device, CallWalk& walk, Engine& engine)
      : signature_(walk.signature()),
        device_(device),
        walk_(walk),
        engine_(engine),
        outputs_(signature_.outputs.size()) {}

  /// An output whose dims are known, and which is required or wanted (has()). Throws std::logic_error for any other. On
  /// CUDA an output with a size that only the kernel knows has the upper bound of that size.
  const MutableTensor& operator[](std::string_view name) const { return at(index_of(name)); }

  /// The output with this index in the signature.
  const MutableTensor& at(std::size_t index) const {
    if (outputs_[index].wanted) return outputs_[index].tensor;
    throw std::logic_error("the kernel writes output '" + signature_.outputs[index].name + "', " +
                           (outputs_[index].done ? "which nobody asked for" : "whose size it has not bound"));
  }

  /// The number of outputs in the signature.
  std::size_t count() const { return signature_.outputs.size(); }

  /// The output with this index if it has memory: somebody wants it, and its dims are known. Else null.
  const MutableTensor* created(std::size_t index) const {
    return outputs_[index].wanted ? &outputs_[index].tensor : nullptr;
  }

  /// Whether somebody wants an output whose dims are known.
  bool has(std::string_view name) const { return outputs_[index_of(name)].wanted; }

  /// Sets a size that only the kernel knows (`v<=n` in the signature) and creates the outputs that need it. On the CPU
  /// only.
  Status bind(std::string_view size, std::int64_t value);

  /// Device memory to which a CUDA kernel writes such a size. It must do so for empty inputs too.
  std::int64_t* device_size(std::string_view size) const;

  // invoke() calls these.

  /// Creates the outputs whose dims are known. On CUDA it creates the others too, with their upper bound.
  Status allocate();

  /// Called after the kernel. Fails if the kernel has not set a size. On CUDA it gives the outputs their exact dims.
  Status finish();

 private:
  struct Created {
    MutableTensor tensor;
    Dims dims;
    bool done = false;
    bool wanted = false;
    bool bounded = false;
  };

  Status allocate_known();
  Status allocate_bounded();
  Status make(std::size_t index, bool bounded);
  Status bound_of(int slot, std::int64_t& bound);
  Status read_sizes();
  Status trim();

  std::size_t index_of(std::string_view name) const {
    for (std::size_t i = 0; i < signature_.outputs.size(); ++i) {
      if (signature_.outputs[i].name == name) return i;
    }
    throw std::logic_error("the kernel asks for output '" + std::string(name) + "', which the signature does not have");
  }

  const Signature& signature_;
  Device device_;
  CallWalk& walk_;
  Engine& engine_;
  std::vector<Created> outputs_;
  std::vector<int> kernel_slots_;         // the slots of the sizes that a CUDA kernel sets
  std::int64_t* device_sizes_ = nullptr;  // one for each of these slots
};

}  // namespace opgate
